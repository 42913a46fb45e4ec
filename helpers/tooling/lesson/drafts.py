"""Drafts: generated files take their place only when they are complete, from one process a time."""

import fcntl
import os
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


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes from making `path` during the block.

    What locks is not that there is a file beside it, with a process id, but that the process holds
    it. The system releases what a process held, however it ended.

    Raises:
        ValueError: Another process is making it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ValueError(f"process {lock.read()} is making {path}: wait for its end") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
