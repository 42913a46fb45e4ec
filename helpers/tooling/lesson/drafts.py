"""What is generated is made aside, and takes its place only when it is finished."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Make a file or a folder anew, with all that is in it.

    Args:
        path: What shall be replaced, if it is there; the folder that holds it is made if need be.

    Yields:
        A path where nothing is yet, to be written. It takes the place of `path` at the end of the
        `with` block. If that is left by an error, or a signal that ends the process, it goes, and
        what was there stays.
    """
    place = path.resolve()  # a link stays one
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{path.name}-") as aside:
        draft = Path(aside, path.name)
        yield draft
        if draft.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        draft.replace(place)
