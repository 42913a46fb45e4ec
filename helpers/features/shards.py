"""Feature rows in files, one file per shard; a file is complete or absent."""

import hashlib
import io
import os
import uuid
from contextlib import suppress
from pathlib import Path

import numpy as np

from helpers.features.job import PLAN, Plan, read_plan

_DIGEST = 32  # bytes of a checksum


def bounds(count: int, size: int) -> list[slice]:
    """Divide `count` rows into slices of one size, at least 2; the last may differ."""
    ends = list(range(size, count, size))
    ends.append(count)
    # A batch of one row may use other kernels and round differently: it joins the previous slice.
    if len(ends) > 1 and ends[-1] - ends[-2] == 1:
        del ends[-2]
    slices = []
    start = 0
    for end in ends:
        slices.append(slice(start, end))
        start = end
    return slices


def files_of(folder: Path, plan: Plan) -> list[tuple[Path, slice]]:
    """List the shards of a folder: each file, and its samples."""
    spans = bounds(plan["samples"], plan["shard"])
    return [(folder / f"features-{index:06d}.npy", span) for index, span in enumerate(spans)]


def write(file: Path, content: bytes) -> None:
    """Write a file under another name, and give it its own once all of it is on the disk.

    If another run gives a file that name first, it stays: shards of one plan have the same bits,
    and a run with another plan then finds out.

    Raises:
        OSError: The file could not be written, for example on a full disk; no part of it remains.
    """
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}.draft")  # for this run alone
    try:
        with draft.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        _name(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _name(draft: Path, file: Path) -> None:
    """Give a complete draft the name of the file, unless there is one."""
    try:
        os.link(draft, file)  # which replaces no file, unlike a renaming
    except FileExistsError:
        pass
    except FileNotFoundError:
        # Another run is over: it made the file, and removed this draft with those of dead runs.
        if not file.exists():
            raise
    except OSError:  # this file system has no hard links
        draft.replace(file)


def remove_drafts(folder: Path) -> None:
    """Remove what runs left that were killed; only for a folder in which no file is missing.

    A run that is still going has drafts of files that are there, and `write` lets these go.
    """
    for pattern in (".features-*.draft", f".{PLAN}*.draft"):
        for draft in folder.glob(pattern):
            with suppress(OSError):  # Windows does not remove a file that is open
                draft.unlink()


def write_rows(file: Path, rows: np.ndarray) -> None:
    """Write a shard with a checksum after the part that NumPy reads."""
    memory = io.BytesIO()  # since `np.save` into a file may not notice that the disk is full
    np.save(memory, rows)
    content = memory.getvalue()
    write(file, content + _checksum(file, content))


def _checksum(file: Path, content: bytes) -> bytes:
    """Hash a shard together with its name, so that a copy of another shard is detected."""
    return hashlib.blake2b(file.name.encode() + content, digest_size=_DIGEST).digest()


def read(file: Path, span: slice, plan: Plan, *, mapped: bool = False) -> np.ndarray:
    """Read a shard `(rows, k)`; if `mapped`, lazily, and without checking its checksum.

    Raises:
        ValueError: The shard is damaged, has the wrong shape, or is a copy of another.
    """
    rows = None
    with suppress(ValueError, EOFError):  # of `np.load`, which may find anything
        if mapped:
            rows = np.load(file, mmap_mode="r")
        else:
            content = file.read_bytes()
            if _checksum(file, content[:-_DIGEST]) == content[-_DIGEST:]:
                rows = np.load(file)
    shape = (span.stop - span.start, plan["k"])
    if rows is None or rows.shape != shape or rows.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"{file} is damaged, or holds no {shape} floating point numbers, as the plan says: "
            "remove it, and run the command that wrote it again"
        )
    return rows


def open_features(folder: str | os.PathLike[str]) -> list[np.ndarray]:
    """Open a folder written by `python -m helpers.features`, even one larger than memory.

    Returns:
        The shards `(rows, k)` in the order of the samples, as memory maps: only what you index is
        read. `np.concatenate` reads them all.

    Raises:
        FileNotFoundError: The folder has no plan, or a shard is missing.
        ValueError: A shard is damaged, or does not have the shape in the plan.
    """
    plan = read_plan(Path(folder))
    opened = []
    for file, span in files_of(Path(folder), plan):
        opened.append(read(file, span, plan, mapped=True))
    return opened
