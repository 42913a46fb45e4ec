"""An answer in a process of its own: its limits, and its certain end.

Nothing here is a container: it runs as the same user, and what Python does not tell its audit
hooks of is not seen.
"""

import contextlib
import ctypes
import json
import os
import resource
import secrets
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from helpers.tooling.grading import guard, processes

MEMORY, FILE, PROCESSES = 4 * 2**30, 10 * 2**20, 32
"""Bytes besides what the lesson takes, bytes of a file, processes: the most that an answer gets."""
LONGEST = 2**20
"""Bytes of what it may say."""
PR_SET_NO_NEW_PRIVS, CLONE_NEWUSER, CLONE_NEWNET = 38, 1 << 28, 1 << 30


def keep(work: Callable[[], dict[str, Any]], seconds: float, secret: Sequence[Path]) -> dict:
    """Run work in a process with limits, and end all that it started.

    Args:
        work: What is run; it returns what can be written as JSON.
        seconds: How long it may take.
        secret: Folders that it may not look into.

    Returns:
        What it returned, with the seconds that it took; or `{"verdict": ...}`, how it ended.
    """
    processes.adopt_orphans()
    processes.end_with_parent(signal.SIGKILL)
    start = time.monotonic()
    folder = tempfile.mkdtemp()
    reader, writer = os.pipe()
    key = secrets.token_bytes(16)
    answer = os.fork()
    if not answer:
        os.close(reader)
        _confine(work, Path(folder), seconds, secret, writer, key)
    os.close(writer)
    try:
        said, end = _listen(reader, answer, start + seconds)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(answer, signal.SIGKILL)  # all there is where no list of them is
        processes.end_descendants()
        subprocess.run(["rm", "-rf", folder], check=False)  # however deep it is
    took = {"seconds": round(time.monotonic() - start, 2)}
    if end == "exit 0" and said.startswith(key):
        with contextlib.suppress(ValueError):
            return json.loads(said.removeprefix(key)) | took
    if end.startswith("not so yet"):
        return {"verdict": end.format(seconds=seconds)} | took
    return {"verdict": f"your answer ended the process ({end})"} | took


def _listen(reader: int, answer: int, deadline: float) -> tuple[bytes, str]:
    """Read what a process says until it ends, or has to; return that, and how it ended."""
    os.set_blocking(reader, False)
    said, closed = b"", False
    while True:
        gone, status = os.waitpid(answer, os.WNOHANG)
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(reader, 2**16):
                said += piece
                if len(said) > LONGEST:
                    return b"", f"it said more than {LONGEST >> 20} MiB"
            closed = True
        if gone:
            code = os.waitstatus_to_exitcode(status)
            return said, f"exit {code}" if code >= 0 else signal.Signals(-code).name
        if time.monotonic() > deadline:
            return b"", "not so yet: it ends within {seconds:.0f} s"
        if len(processes.descendants()) > PROCESSES:
            return b"", f"it started more than {PROCESSES} processes"
        if closed:
            time.sleep(0.01)
        else:
            select.select([reader], [], [], 0.05)


def _confine(
    work: Callable[[], dict[str, Any]],
    folder: Path,
    seconds: float,
    secret: Sequence[Path],
    writer: int,
    key: bytes,
) -> None:
    """Give this process its limits, do the work in it, and end it."""
    encode, write, leave = json.JSONEncoder().encode, os.write, os._exit  # not the answer's

    def tell(outcome: dict[str, Any]) -> None:
        left = key + encode(outcome).encode()
        while left:
            left = left[write(writer, left) :]
        leave(0)

    try:
        os.setsid()
        processes.end_with_parent(signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for file in (0, 1, 2):
            os.dup2(null, file)
        os.closerange(3, writer)
        os.closerange(writer + 1, 4096)
        os.chdir(folder)
        own = dict.fromkeys(("HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"), str(folder))
        os.environ |= own | {"PATH": "/usr/bin"}
        tempfile.tempdir, sys.dont_write_bytecode = str(folder), True
        _no_network()
        _no_writing_outside(folder)
        _limit(seconds)
        guard.watch(folder, secret, tell)
        tell(work())
    except BaseException as error:
        tell({"verdict": f"your answer ended with {type(error).__name__}: {error}"})
    finally:
        leave(1)


def _limit(seconds: float) -> None:
    limits = {"CPU": int(seconds) + 1, "FSIZE": FILE, "CORE": 0}
    table = Path("/proc/self/statm")
    if table.exists():  # else the system does not keep to it
        pages = int(table.read_text().split()[0])
        limits["AS"] = pages * resource.getpagesize() + MEMORY
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


def _no_network() -> None:
    """Leave the network behind, where the system allows."""
    if sys.platform == "linux":
        user = 0 if os.getuid() == 0 else CLONE_NEWUSER
        ctypes.CDLL(None).unshare(CLONE_NEWNET | user)


def _no_writing_outside(folder: Path) -> None:
    """Have the system refuse changes of files elsewhere, where it can (Landlock, Linux 6.2).

    See https://docs.kernel.org/userspace-api/landlock.html.
    """
    if sys.platform != "linux":
        return
    create, add, restrict = 444, 445, 446
    call = ctypes.CDLL(None).syscall
    if call(create, None, 0, 1) < 3:  # the version
        return
    write, truncate = 1 << 1, 1 << 14
    changes = sum(1 << bit for bit in (1, *range(4, 15)))  # write, remove, make, move, truncate
    rules = call(create, struct.pack("=Q", changes), 8, 0)
    for path, allowed in ((folder, changes), (os.devnull, write | truncate)):
        place = os.open(path, os.O_PATH)
        call(add, rules, 1, struct.pack("=Qi", allowed, place), 0)
        os.close(place)
    processes.prctl(PR_SET_NO_NEW_PRIVS, 1)
    call(restrict, rules, 0)
    os.close(rules)
