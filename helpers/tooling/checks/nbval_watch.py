"""A pytest plugin: nbval notices a dead kernel, names cells as we do, and leaves out progress.

By itself, nbval waits for the reply of a dead kernel as long as a cell may take, and counts code
cells from 0.
"""

import os
import time
from queue import Empty
from typing import Any

from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell, IPyNbFile

from helpers.tooling.lesson import files

_wait = RunningKernel.get_message
_report = IPyNbCell.repr_failure
_set_up = IPyNbFile.setup


def get_message(kernel: RunningKernel, stream: str, timeout: float | None = None) -> dict[str, Any]:
    """Wait for a message in slices of a second, as long as there is a kernel to send one.

    Raises:
        queue.Empty: The timeout is over.
        RuntimeError: The kernel died.
    """
    end = float("inf") if timeout is None else time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        try:
            return _wait(kernel, stream, timeout=max(0, min(1, left)))
        except Empty:
            if not kernel.is_alive():
                raise RuntimeError("the kernel died while this cell ran") from None
            if left <= 1:
                raise


def repr_failure(item: IPyNbCell, excinfo: Any) -> str:
    """Say in which cell of the lesson something failed, `cell 48 (port-check)`, and any warning.

    nbval says that there is an output on stderr, and not which.
    """
    outputs = item.test_outputs or []
    warned = "".join(each.text for each in outputs if each.get("name") == "stderr")
    place = files.place(item.parent.nb, item.cell)
    return f"{place}\n{_report(item, excinfo)}" + (f"\nstderr: {warned}" if warned else "")


def setup(file: IPyNbFile) -> None:
    """Silence progress, which is not saved."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # for the kernel
    _set_up(file)


RunningKernel.get_message = get_message
IPyNbCell.repr_failure = repr_failure
IPyNbFile.setup = setup
