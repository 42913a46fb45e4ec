"""An answer in a process of its own: its limits, what it may not reach for, and its certain end.

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
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

MEMORY, FILE, PROCESSES = 4 * 2**30, 10 * 2**20, 32
"""Bytes besides what the lesson takes, bytes of a file, processes: the most that an answer gets."""
LONGEST = 2**20
"""Bytes of what it may say."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CLONE_NEWUSER, CLONE_NEWNET = 1 << 28, 1 << 30

REFUSED = {
    *("os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "subprocess.Popen"),
    *("os.kill", "os.killpg", "signal.pthread_kill", "socket.connect", "socket.bind"),
    *("ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function"),
    *("sys.addaudithook", "resource.setrlimit", "resource.prlimit", "sqlite3.connect"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames"),
}
"""Audit events that no answer has a reason for, whoever raises them on its behalf."""
INSPECTIONS = {
    *("sys._getframe", "object.__getattr__", "object.__setattr__", "exec", "compile"),
    *("sys.settrace", "sys.setprofile", "ctypes.cdata", "ctypes.string_at"),
}
"""Audit events that libraries have reasons for, and code in a cell has not."""
CHANGES = {
    *("os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink"),
    *("os.mkdir", "os.utime", "os.chown", "os.setxattr"),
}
"""Audit events that name first a file which they change, or second."""
SILENT = {"_posixsubprocess": ["fork_exec"], "os": ["pidfd_open"], "signal": ["pidfd_send_signal"]}
"""Functions of which no audit event tells."""
LOOKS = {"open", "os.listdir", "os.scandir"}


def keep(work: Callable[[], dict[str, Any]], seconds: float, secret: Sequence[Path]) -> dict:
    """Run work in a process with limits, and end all that it started.

    Args:
        work: What is run; it returns what can be written as JSON.
        seconds: How long it may take.
        secret: Folders that it may not look into.

    Returns:
        What it returned, with the seconds that it took; or `{"verdict": ...}`, how it ended.
    """
    adopt_orphans()
    end_with_parent(signal.SIGKILL)
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
        end_descendants()
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
        if len(descendants()) > PROCESSES:
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
        end_with_parent(signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for file in (0, 1, 2):
            os.dup2(null, file)
        os.closerange(3, writer)
        os.closerange(writer + 1, 4096)
        os.chdir(folder)
        os.environ |= {"HOME": str(folder), "TMPDIR": str(folder), "PATH": "/usr/bin"}
        tempfile.tempdir, sys.dont_write_bytecode = str(folder), True
        _no_network()
        _no_writing_outside(folder)
        _limit(seconds)
        sys.addaudithook(_watch(folder, secret, tell))
        for module, names in SILENT.items():
            for name in names:
                said = {"verdict": REACHED.format(f"{module}.{name}")}
                setattr(sys.modules[module], name, lambda *_, said=said, **__: tell(said))
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
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    call(restrict, rules, 0)
    os.close(rules)


def _watch(folder: Path, secret: Sequence[Path], tell: Callable[[dict], None]) -> Callable:
    """Make an audit hook that ends an answer which reaches for what it has no reason for."""
    real, thread = os.path.realpath, threading.local()
    kept, mine = [real(each) for each in secret], f"{real(folder)}{os.sep}"

    def reached(event: str, arguments: tuple, frame: FrameType) -> str | None:
        if event in REFUSED:
            return event
        if event in INSPECTIONS:
            if event == "sys._getframe":
                while frame.f_back and Path(frame.f_code.co_filename).stem in LOOKERS:
                    frame = frame.f_back
            named = arguments[1] if event.startswith("object.") else event
            return named if _is_of_a_cell(frame) else None
        changed = (
            arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]
        )
        for each in changed:
            path = real(os.fsdecode(each)) if isinstance(each, str | bytes | Path) else ""
            writes = event in CHANGES or (event == "open" and (arguments[2] or 0) & WRITING)
            if path.startswith(mine) or path == os.devnull:
                continue
            if (
                writes
                or path.endswith(".ipynb")
                or any(f"{path}/".startswith(f"{k}/") for k in kept)
            ):
                return f"the file {Path(path).name}"
        return None

    def hook(event: str, arguments: tuple) -> None:
        if event not in WATCHED or getattr(thread, "busy", False):
            return
        thread.busy = True
        try:
            what = reached(event, arguments, sys._getframe(1))
        except BaseException:  # an event that the answer made up
            what = event
        if what:
            tell({"verdict": REACHED.format(what)})
        thread.busy = False

    return hook


REACHED = "refused: it reached for {}, which no answer needs"
WATCHED = REFUSED | INSPECTIONS | CHANGES | LOOKS
LOOKERS = {"inspect", "traceback"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _is_of_a_cell(frame: FrameType) -> bool:
    """Say whether code was written by the student: it lies in no file, or in no cell of the lesson.

    Names of cells of the lesson end in `of the lesson>`, as
    `helpers.tooling.grading.judge.run` gives.
    """
    name = frame.f_code.co_filename
    return name.startswith("<") and not name.startswith("<frozen") and not name.endswith("lesson>")


def adopt_orphans() -> None:
    """Make orphans among the processes that come from this one its children (Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int) -> None:
    """Get a signal when the process that started this one is gone (Linux)."""
    _prctl(PR_SET_PDEATHSIG, number)


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


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
