"""A generated folder or file is made aside, and takes its place only when it is finished."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Make a folder anew: it is there in full, or as it was before.

    Args:
        folder: What shall be replaced, with all that is in it, if it is there.

    Yields:
        An empty folder beside it, to be filled. It takes the place of `folder` at the end of the
        `with` block, and is removed if that is left by an error or a signal that ends the process.

    Raises:
        ValueError: It cannot be written, with a sentence that says why.
    """
    _require_folder(folder)
    folder = folder.resolve() if folder.is_symlink() else folder  # a link stays one
    with _explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as draft:
            new, old = Path(draft, "new"), Path(draft, "old")
            new.mkdir()
            yield new
            try:
                if folder.exists():
                    folder.rename(old)
                new.rename(folder)
            except BaseException:  # a signal between the two included
                if old.exists() and not folder.exists():
                    old.rename(folder)
                raise


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Make a file anew: it is there in full, or as it was before.

    Args:
        path: What shall be replaced, if it is there; its folder is.

    Yields:
        A path beside it, to be written. It takes the place of `path` at the end of the `with`
        block, and is removed if that is left by an error or a signal that ends the process.

    Raises:
        ValueError: It cannot be written, with a sentence that says why.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):  # what could not be written for want of a folder cannot be removed
            draft.unlink(missing_ok=True)


def _require_folder(folder: Path) -> None:
    """Refuse a path that cannot be a folder, since a file or a dangling link stands in its way.

    Raises:
        ValueError: With what stands there.
    """
    for each in (*reversed(folder.parents), folder):
        if os.path.lexists(each) and not each.is_dir():
            whole = "it" if each == folder else each
            raise ValueError(f"cannot write {folder}: {whole} is there, and is not a folder")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what the system refuses into a sentence that names what was to be written."""
    try:
        yield
    except OSError as error:
        reason = (
            f"{error.strerror}: {error.filename}" if error.filename else error.strerror or error
        )
        raise ValueError(f"cannot write {path}: {reason}") from error
