"""Peak memory of a process, asked of itself: the kernel of a lesson answers before it ends."""

import sys
from pathlib import Path


def peak() -> dict[str, int]:
    """Measure the most memory that this process has held at once.

    Returns:
        Bytes: under `"host"` the high-water mark of resident memory (absent where the system
        does not tell), under `"cuda"` that of what PyTorch reserved on GPUs (absent where it
        used none).
    """
    used = {}
    host = _host()
    if host is not None:
        used["host"] = host
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # Reserved, not allocated: a benchmark resets the peaks, after which PyTorch still counts
        # what it holds in reserve, but not what was allocated before.
        used["cuda"] = sum(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count())))
    return used


def _host() -> int | None:
    """Read the high-water mark of resident memory, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: on Linux its figure includes the process that started this one.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
