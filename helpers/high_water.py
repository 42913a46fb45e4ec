"""The most memory that this process has ever held at once, as the system counts it."""

import sys
from pathlib import Path


def high_water() -> int | None:
    """Read the high-water mark of resident memory.

    Returns:
        Bytes; `None` where the system does not tell (Windows).
    """
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
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def page_faults() -> int | None:
    """Count the pages of memory that the system has had to hand this process, without a disk.

    Returns:
        The minor faults so far; `None` where the system does not tell (Windows).
    """
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
