"""Peak memory of a process, asked of itself: the kernel of a lesson answers before it ends."""

import sys

from helpers.memory import high_water


def peak() -> dict[str, int]:
    """Measure the most memory that this process has held at once.

    Returns:
        Bytes: under `"host"` the high-water mark of resident memory (absent where the system
        does not tell), under `"cuda"` that of what PyTorch reserved on GPUs (absent where it
        used none).
    """
    used = {}
    host = high_water()
    if host is not None:
        used["host"] = host
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # Reserved, not allocated: a benchmark resets the peaks, after which PyTorch still counts
        # what it holds in reserve, but not what was allocated before.
        used["cuda"] = sum(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count())))
    return used
