"""What no answer may reach for, as far as Python tells its audit hooks of it."""

import _posixsubprocess
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

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
MOVES = {"os.rename", "os.link", "os.symlink"}
"""Audit events that name two files."""
CHANGES = {
    *("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "os.utime"),
    *("os.setxattr", *MOVES),
}
"""Audit events that name a file which they change."""
SILENT = ((_posixsubprocess, "fork_exec"), (os, "pidfd_open"), (signal, "pidfd_send_signal"))
"""Functions of which no audit event tells."""
LOOKS = {"open", "os.listdir", "os.scandir"}
WATCHED = REFUSED | INSPECTIONS | CHANGES | LOOKS
LOOKERS = {"inspect", "traceback"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def watch(folder: Path, secret: Sequence[Path], tell: Callable[[dict], None]) -> None:
    """Let this process end as soon as it reaches for what no answer has a reason for.

    Args:
        folder: The one folder in which it may change files.
        secret: Folders that it may not look into.
        tell: Ends it, with the outcome that it is given.
    """
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
        changes = event in CHANGES or (event == "open" and (arguments[2] or 0) & WRITING)
        for each in arguments[: 2 if event in MOVES else 1]:
            path = real(os.fsdecode(each)) if isinstance(each, str | bytes | Path) else ""
            if f"{path}{os.sep}".startswith(mine) or path == os.devnull:
                continue
            hidden = path.endswith(".ipynb") or any(f"{path}/".startswith(f"{k}/") for k in kept)
            if changes or hidden:
                return f"the file {Path(path).name}"
        return None

    def refuse(what: str) -> None:
        tell({"verdict": f"refused: it reached for {what}, which no answer needs"})

    def hook(event: str, arguments: tuple) -> None:
        if event not in WATCHED or getattr(thread, "busy", False):
            return
        thread.busy = True
        try:
            what = reached(event, arguments, sys._getframe(1))
        except BaseException:  # an event that the answer made up
            what = event
        if what:
            refuse(what)
        thread.busy = False

    sys.addaudithook(hook)
    for module, name in SILENT:
        setattr(module, name, lambda *_, name=name, **__: refuse(name))


def _is_of_a_cell(frame: FrameType) -> bool:
    """Say whether code was written by the student: it lies in no file, or in no cell of the lesson.

    Names of cells of the lesson end in `of the lesson>`, as
    `helpers.tooling.grading.judge.run` gives.
    """
    name = frame.f_code.co_filename
    return name.startswith("<") and not name.startswith("<frozen") and not name.endswith("lesson>")
