"""A pytest plugin: nbval notices within seconds that a kernel died.

By itself, nbval waits for the reply of a dead kernel as long as a cell may take.
"""

import time
from queue import Empty
from typing import Any

from nbval.kernel import RunningKernel

_wait = RunningKernel.get_message


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


RunningKernel.get_message = get_message
