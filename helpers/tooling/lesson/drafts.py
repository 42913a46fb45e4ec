"""A generated folder or file is made aside, and takes its place only when it is finished."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Make a file anew: it is there in full, or as it was before.

    Args:
        path: What shall be replaced, if it is there; its folder is made if need be.

    Yields:
        A path where nothing is yet, to be written. It takes the place of `path` at the end of the
        `with` block, and is removed if that is left by an error or a signal that ends the process.

    Raises:
        ValueError: It cannot be written, with a sentence that says why.
    """
    place = path.resolve()  # a link stays one
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{path.name}-") as aside:
            draft, old = Path(aside, path.name), Path(aside, "old")
            yield draft
            try:
                if draft.is_dir() and place.is_dir():  # which no system replaces in one step
                    place.rename(old)
                draft.replace(place)
            except BaseException:  # a signal between the two included
                if old.exists() and not place.exists():
                    old.rename(place)
                raise
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Make a folder anew, as `replaced_file` does a file.

    Args:
        folder: What shall be replaced, with all that is in it, if it is there.

    Yields:
        An empty folder, to be filled.

    Raises:
        ValueError: It cannot be written, with a sentence that says why.
    """
    with replaced_file(folder) as draft:
        draft.mkdir()
        yield draft
