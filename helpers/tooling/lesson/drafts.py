"""Drafts: generated files take their place only when they are complete."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path where a file or a folder is made anew, to replace `path` after the block.

    After an error in it, or a signal that ends the process, what was there stays.
    """
    target = path.resolve()  # a link stays one
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{path.name}-") as temp_dir:
        draft = Path(temp_dir, path.name)
        yield draft
        if draft.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        draft.replace(target)
