"""Drafts: generated files take their place only when they are complete."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path where a file or a folder is made anew, to replace `path` after the block.

    After an error or an interrupt, in the block or while it takes its place, what was there stays.
    """
    target = path.resolve()  # a link stays one
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{path.name}-") as temp_dir:
        draft = Path(temp_dir, path.name)
        yield draft
        old = Path(temp_dir, f"{path.name}.old")
        try:
            # A file replaces a file, but no folder replaces one that holds something.
            if draft.is_dir() and target.is_dir():
                target.replace(old)
            draft.replace(target)
        except BaseException:  # an interrupt, too
            if old.exists() and not target.exists():
                old.replace(target)
            raise
