"""How a command ends that is interrupted, or that cannot write."""

import errno
import logging
import os
import signal
import sys
import threading
import time
from types import TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill`, and a terminal that closes."""
REFUSED = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),  # no space
    *(errno.EROFS, errno.EACCES, errno.EPERM),  # read-only
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOENT),  # something else of that name
)
"""What the system says of a place where nothing can be written."""


def cleanly_on_signals() -> None:
    """Let `SIGNALS` end this process as `sys.exit` does: kernels and drafts go first."""

    def end(received: int, frame: object) -> None:
        logging.getLogger("asyncio").disabled = True  # it would log the task that this ends
        sys.exit(128 + received)

    for number in SIGNALS:
        signal.signal(number, end)


def with_the_parent() -> None:
    """Let the end of the parent, however it comes, end this process as a signal does."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def in_one_sentence() -> None:
    """Let a place that cannot be written end this process with one sentence, and status 1."""

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, OSError) and error.errno in REFUSED:
            place = f"{error.filename}: " if error.filename else ""
            print(f"{place}{error.strerror}", file=sys.stderr)
        else:
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = say
