"""Rows of features in files, one a shard, that are there whole or not at all."""

import hashlib
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from helpers.features import plan

_DIGEST = 32  # bytes of a checksum


def bounds(count: int, size: int) -> list[slice]:
    """Divide `count` rows into slices of one size, at least 2; the last has fewer, or one more.

    Very few rows can take other kernels than a batch, and get other last bits; one row most often
    does. So one row that is left over goes with the piece before it.
    """
    starts = list(range(0, count, size))
    if len(starts) > 1 and count - starts[-1] == 1:
        starts.pop()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], count], strict=True)]


def of_plan(folder: Path, made: plan.Plan) -> list[tuple[Path, slice]]:
    """List the shards of a folder: where each lies, and its samples."""
    parts = bounds(made.samples, made.shard)
    return [(folder / f"features-{index:06d}.npy", part) for index, part in enumerate(parts)]


def write_whole(file: Path, content: bytes) -> None:
    """Write a file: under another name first, renamed when all of it is on the disk.

    One that has this content is left as it is: a finished folder may be read-only.

    Raises:
        OSError: It could not be written, for example since the disk is full. Nothing is left.
    """
    if file.exists() and file.read_bytes() == content:
        return
    draft = file.with_name(f".{file.name}.draft")  # as after a kill: the next run writes over it
    try:
        with draft.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write(file: Path, array: np.ndarray) -> None:
    """Write an array as `write_whole` does, its checksum at the end, where NumPy reads nothing."""
    # Into a file, NumPy writes by C's buffers, and does not notice when the last one fails.
    content = io.BytesIO()
    np.save(content, array)
    write_whole(file, content.getvalue() + _checksum(file, content.getvalue()))


def _checksum(file: Path, content: bytes) -> bytes:
    """Hash a shard with its name: else it could be another one, copied."""
    return hashlib.blake2b(file.name.encode() + content, digest_size=_DIGEST).digest()


def read(file: Path, part: slice, made: plan.Plan, *, mapped: bool = False) -> np.ndarray:
    """Read a shard `(rows, k)`; `mapped` reads what is asked for later, and no checksum.

    Raises:
        ValueError: It is damaged, not the one that was written, or has another shape.
    """
    rows, shape = None, (part.stop - part.start, made.k)
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


class Features:
    """All rows of a folder as one array `(N, k)`, of which only what is asked for is read.

    Attributes:
        shape: `(N, k)`.
        dtype: Of the numbers.
        shards: The files as arrays `(rows, k)`, mapped into memory by NumPy, in order.
    """

    def __init__(self, shards: Sequence[np.ndarray]) -> None:
        self.shards = list(shards)
        self.shape = (sum(map(len, self.shards)), self.shards[0].shape[1])
        self.dtype = self.shards[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice | Sequence[int] | np.ndarray) -> np.ndarray:
        """Read rows: `features[7]`, `(k,)`; `features[10:20]` or `features[[3, 1]]`, `(n, k)`."""
        wanted = np.arange(len(self))[rows]
        ends = np.cumsum([*map(len, self.shards)])
        places = np.searchsorted(ends, wanted, side="right").flat
        found = [self.shards[p][i - ends[p]] for p, i in zip(places, wanted.flat, strict=True)]
        return np.array(found, self.dtype).reshape(*wanted.shape, self.shape[1])

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self.shards).astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"Features(shape={self.shape}, dtype={self.dtype}, shards={len(self.shards)})"


def open_features(folder: str | os.PathLike[str]) -> Features:
    """Open a folder that `python -m helpers.features` wrote: all rows, as one array read lazily.

    Raises:
        FileNotFoundError: It is no such folder, or shards are missing.
        ValueError: A shard is damaged, or has not the shape of the plan.
    """
    made = plan.read(Path(folder))
    known = of_plan(Path(folder), made)
    missing = [file.name for file, _ in known if not file.exists()]
    if missing:
        raise FileNotFoundError(
            f"{folder}: {len(missing)} of {len(known)} shards are missing, the first is "
            f"{missing[0]}; run the command that wrote it again"
        )
    return Features([read(*each, made, mapped=True) for each in known])
