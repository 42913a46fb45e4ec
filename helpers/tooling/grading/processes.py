"""Processes that come from this one: kept together, listed and ended (all of it on Linux)."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Make orphans among the processes that come from this one its children (Linux)."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int) -> None:
    """Get a signal when the process that started this one is gone (Linux)."""
    prctl(PR_SET_PDEATHSIG, number)


def descendants() -> list[int]:
    """List the processes that come from this one, where the system tells (Linux)."""
    found, asked = [], [os.getpid()]
    while asked:
        process = asked.pop()
        for thread in Path(f"/proc/{process}/task").glob("*"):
            with contextlib.suppress(OSError):
                new = [int(each) for each in (thread / "children").read_text().split()]
                found += new
                asked += new
    return found


def end_descendants() -> None:
    """End the processes that come from this one: all stand still first, and start no more."""
    while family := descendants():
        _signal(family, signal.SIGSTOP)
        if {*descendants()} <= {*family}:
            _signal(family, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _signal(processes: Sequence[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def prctl(option: int, value: int) -> None:
    """Set an option of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
