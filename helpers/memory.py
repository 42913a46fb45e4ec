"""Memory that is freed: given back to the system, or kept in the process for the next use.

On Linux a large tensor lies in memory that the C library (glibc) maps for it alone and unmaps when
it is freed. The next tensor is mapped anew, and the system fills every page of it with zeros when
it is first touched: a page fault for each 4096 bytes. Memory that is kept has its pages already.
"""

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator

# From glibc's malloc.h; see mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_DEFAULTS = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_THRESHOLD: 128 * 1024, _MMAP_MAX: 65536}
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1}


@contextlib.contextmanager
def keep_freed() -> Iterator[bool]:
    """Keep freed memory in this process, so that later tensors find it without page faults.

    Inside, no tensor gets a mapping of its own (`M_MMAP_MAX`), and the heap is not shortened when
    its end is freed (`M_TRIM_THRESHOLD`). So the resident memory stays at its highest point, and
    where free pieces of the heap do not fit what is asked for next, grows beyond it.

    Afterwards glibc's initial values are set and all free pages are given back. One thing is not
    undone: glibc raises its thresholds by itself when large blocks are freed, up to 32 MiB, and
    stops doing so for good once any of them is set. A process that left this block maps every
    tensor from 128 KiB on by itself, which makes more page faults than before the block.

    The setting holds for the whole process, all its threads, and ends with the outermost block.

    Yields:
        Whether memory is kept: `False`, and nothing is done, without glibc (macOS, Windows, musl)
        or where it refuses.
    """
    library = _glibc()
    kept = library is not None and _set(library, _KEEP)
    try:
        _blocks.append(kept)
        yield kept
    finally:
        _blocks.pop()
        if library is not None and not any(_blocks):
            _set(library, _DEFAULTS)
            gc.collect()
            library.malloc_trim(0)


_blocks: list[bool] = []  # those that are open


def resident() -> int | None:
    """Return how many bytes of this process are in memory now; `None` where no `/proc` says it."""
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _glibc() -> ctypes.CDLL | None:
    """Return the C library of this process if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (only glibc has it)
        return library
    except (OSError, AttributeError, TypeError):  # TypeError: Windows takes no None
        return None


def _set(library: ctypes.CDLL, values: dict[int, int]) -> bool:
    """Call `mallopt` for each value; return whether all were taken."""
    return all([library.mallopt(option, value) == 1 for option, value in values.items()])
