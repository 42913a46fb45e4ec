"""The memory of this process: current, peak, and keeping freed memory.

On Linux, the C library (glibc) maps memory for each large tensor and unmaps it when the tensor is
freed. The next tensor gets a new mapping, and the system fills every page with zeros on first use:
a page fault for each 4096 bytes. Memory that is kept causes none. Lesson 7 measures both.
"""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # as a module that may be missing

# From glibc's malloc.h; see mallopt(3).
_MXFAST, _TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = 1, -1, -3, -4
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _MXFAST: 0}
_GROWN = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 64 * 2**20, _MXFAST: 128, _MMAP_THRESHOLD: 32 * 2**20}


@contextlib.contextmanager
def keep_freed() -> Iterator[bool]:
    """Keep freed memory in this process, so that later tensors cause no page faults.

    Inside, no tensor gets a mapping of its own (`M_MMAP_MAX`), and the heap is not trimmed when its
    end is freed (`M_TRIM_THRESHOLD`). So resident memory stays at its peak, and can grow beyond
    what is in use if a small block ends up behind a free one. PyTorch requests aligned memory, and
    glibc caches what it cuts off for that as such small blocks. So these caches are filled first
    (this thread's), or disabled (`M_MXFAST`).

    The setting holds for all threads, though in others than the main one, tensors of 64 MiB or more
    still get their own mappings. It ends with the outermost block: free pages are returned, and
    tensors of 32 MiB or more (the threshold glibc itself grows to) get their own mappings.

    Yields:
        Whether memory is kept: `False` without glibc (macOS, Windows, musl), where nothing is done,
        or if glibc refuses a setting.
    """
    library = _glibc()
    kept = library is not None and _set(library, _KEEP)
    try:
        _blocks.append(kept)
        if library is not None and kept:
            _fill_stores(library)
        yield kept
    finally:
        _blocks.pop()
        if library is not None and not any(_blocks):
            _set(library, _GROWN)
            gc.collect()
            library.malloc_trim(0)


_blocks: list[bool] = []  # those that are open


def resident() -> int | None:
    """Return how many bytes of this process are in memory now; `None` without `/proc`."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return None
    return int(statm.read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def high_water() -> int | None:
    """Return the peak resident bytes; `None` where the system does not report it (Windows)."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: on Linux its figure includes the process that started this one.
        for line in status.read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                kibibytes = value.split()[0]
                return int(kibibytes) * 1024
        return None
    if resource is None:
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def page_faults() -> int | None:
    """Return the number of minor page faults so far; `None` where the system does not tell."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _glibc() -> ctypes.CDLL | None:
    """Return the C library of this process if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (only glibc has it)
        return library
    except (OSError, AttributeError, TypeError):  # TypeError: Windows takes no None
        return None


def _fill_stores(library: ctypes.CDLL) -> None:
    """Fill this thread's caches of small blocks (tcache)."""
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    for size in range(24, 1033, 16):
        blocks = [library.malloc(size) for _ in range(8)]
        for block in blocks:
            library.free(block)


def _set(library: ctypes.CDLL, values: dict[int, int]) -> bool:
    """Call `mallopt` for each value; return whether all were taken."""
    taken = True
    for option, value in values.items():
        taken = library.mallopt(option, value) == 1 and taken
    return taken
