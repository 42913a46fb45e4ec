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
_GROWN = {_TRIM_THRESHOLD: 64 * 2**20, _MMAP_THRESHOLD: 32 * 2**20, _MMAP_MAX: 65536}
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1}


@contextlib.contextmanager
def keep_freed() -> Iterator[bool]:
    """Keep freed memory in this process, so that later tensors find it without page faults.

    Inside, no tensor gets a mapping of its own (`M_MMAP_MAX`), and the heap is not shortened when
    its end is freed (`M_TRIM_THRESHOLD`). So the resident memory stays at its highest point, and
    can grow well beyond what is in use: as long as small blocks come to lie between the free
    pieces, what is asked for next does not fit them. A loop that makes one tensor of 64 MB and
    frees it took up to 10 times 64 MB before the same pieces were used again and again.

    Afterwards all free pages are given back, and large tensors have mappings of their own again,
    except where one fits an empty stretch of the heap between blocks that are in use.
    glibc raises by itself the size from which on a block gets its own mapping, from 128 KiB up to
    32 MiB as blocks are freed, and stops doing so for good once it is set. So it is set to where
    that ends, 32 MiB: what a process comes to that frees tensors of all sizes.

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
            _set(library, _GROWN)
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
