"""Feature rows in files, one file per shard; a file is complete or absent."""

import hashlib
import io
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from helpers.features.job import Plan, read_plan

_DIGEST = 32  # bytes of a checksum


def bounds(count: int, size: int) -> list[slice]:
    """Divide `count` rows into slices of one size, at least 2; the last has fewer, or one more.

    A batch of one row can take other kernels, and get other last bits. So one row that is left
    over goes with the slice before it.
    """
    starts = list(range(0, count, size))
    if len(starts) > 1 and count - starts[-1] == 1:
        starts.pop()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], count], strict=True)]


def files_of(folder: Path, plan: Plan) -> list[tuple[Path, slice]]:
    """List the shards of a folder: each file, and its samples."""
    parts = bounds(plan["samples"], plan["shard"])
    return [(folder / f"features-{index:06d}.npy", part) for index, part in enumerate(parts)]


def write(file: Path, content: bytes) -> None:
    """Write a file under another name, and rename it when all of it is on the disk.

    Raises:
        OSError: It could not be written, for example since the disk is full. Nothing is left.
    """
    draft = file.with_name(f".{file.name}.draft")  # after a kill, the next run writes over it
    try:
        with draft.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_rows(file: Path, rows: np.ndarray) -> None:
    """Write a shard as `write` does, with a checksum at the end, where NumPy stops reading.

    `np.save` into a file may not notice that the disk became full, so it saves into memory.
    """
    content = io.BytesIO()
    np.save(content, rows)
    write(file, content.getvalue() + _checksum(file, content.getvalue()))


def _checksum(file: Path, content: bytes) -> bytes:
    """Hash a shard with its name: else it could be a copy of another one."""
    return hashlib.blake2b(file.name.encode() + content, digest_size=_DIGEST).digest()


def read(file: Path, part: slice, plan: Plan, *, mapped: bool = False) -> np.ndarray:
    """Read a shard `(rows, k)`; if `mapped`, lazily, and without comparing its checksum.

    Raises:
        ValueError: It is damaged, not the one that was written, or has another shape.
    """
    rows, shape = None, (part.stop - part.start, plan["k"])
    with suppress(ValueError, EOFError):
        content = b"" if mapped else file.read_bytes()
        if mapped or _checksum(file, content[:-_DIGEST]) == content[-_DIGEST:]:
            rows = np.load(file, mmap_mode="r" if mapped else None)
    if rows is None or rows.shape != shape or rows.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"{file} is damaged, or holds no {shape} floating point numbers, as the plan says: "
            "remove it, and run the command that wrote it again"
        )
    return rows


def open_features(folder: str | os.PathLike[str]) -> list[np.ndarray]:
    """Open a folder that `python -m helpers.features` wrote, whose rows may exceed the memory.

    Returns:
        The shards `(rows, k)` in the order of the samples, mapped into memory: of each the system
        reads what is asked for. `np.concatenate` reads them all.

    Raises:
        FileNotFoundError: It is no such folder, or a shard is missing.
        ValueError: A shard is damaged, or does not have the shape in the plan.
    """
    plan = read_plan(Path(folder))
    return [read(*each, plan, mapped=True) for each in files_of(Path(folder), plan)]
