"""What `helpers.memory` does to page faults and to resident memory, each in a fresh process."""

import os
import subprocess
import sys

import pytest

from helpers import memory

PROBE = """
import resource, torch
from helpers import memory

def faults(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(size)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

large, pages = 16 * 2**20, 16 * 2**20 * 4 // resource.getpagesize()

def mapped_anew():
    # Larger than all that the process held: nothing in the heap is an empty stretch as long.
    larger = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 4
    return min(faults(larger) for _ in range(2)) >= larger * 4 // resource.getpagesize()

torch.ones(large)
start = memory.resident()
"""
linux = pytest.mark.skipif(memory._glibc() is None, reason="there is no glibc")


def probe(code: str) -> None:
    # Without what `make test` sets, which keeps freed memory from the start.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    subprocess.run([sys.executable, "-c", PROBE + code], check=True, env=environment)


@linux
def test_freed_memory_is_used_again_until_the_outermost_block_ends():
    probe("""
assert mapped_anew()
try:
    with memory.keep_freed() as kept:
        with memory.keep_freed() as inner:
            assert kept is inner is True
        # One piece or two; ten where small blocks come to lie between.
        assert sum(faults(large) for _ in range(20)) < 3.5 * pages
        inside = memory.resident()
        assert inside > start + 0.9 * 4 * large
        raise KeyError
except KeyError:
    pass
assert memory.resident() < inside - 0.9 * 4 * large

# Tensors below 32 MiB are kept, as in a process that has freed some.
middle = 4 * 2**20  # numbers: 16 MiB
for _ in range(20):  # the first of them find their place
    torch.ones(middle)
assert sum(faults(middle) for _ in range(5)) < middle * 4 // resource.getpagesize() / 10
assert mapped_anew()
""")
