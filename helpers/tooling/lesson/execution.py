"""What every execution of a lesson has in common: its kernel's options, and how failure reads."""

import signal
import sys
from pathlib import Path
from typing import Any

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from helpers.tooling.lesson import files

CELL_TIMEOUT = 600
"""Seconds that a cell may take."""


class Execution:
    """One execution of a lesson: it remembers the cell under way, and the peak memory in the end.

    Attributes:
        lesson: The notebook.
        peak_memory: As `helpers.tooling.lesson.memory.peak` gives it, empty while unknown.
    """

    def __init__(self, lesson: Path) -> None:
        self.lesson = lesson
        self.peak_memory: dict[str, int] = {}
        self._cell: NotebookNode | None = None

    def options(self) -> dict[str, Any]:
        """Give the options of the `nbclient.NotebookClient` that executes the lesson."""
        return {
            "timeout": CELL_TIMEOUT,
            "shutdown_kernel": "immediate",  # a busy kernel would not listen to a polite request
            "on_cell_start": self._remember,
            # Errors only: a kernel warns, each time, that its local sockets are not encrypted.
            "extra_arguments": ["--IPKernelApp.log_level=40"],
        }

    def failure(self, error: Exception) -> str:
        """Say in which cell of the lesson an error ended the execution, and what it was."""
        if self._cell is None:
            where = "before its first cell"
        else:
            first_line = self._cell.source.strip().partition("\n")[0]
            where = f"{files.place(files.read(self.lesson), self._cell)} `{first_line}`"
        return f"{self.lesson.name}, {where}: {_message(error)}"

    def _remember(self, cell: NotebookNode, cell_index: int) -> None:
        self._cell = cell


def end_cleanly_on_signals() -> None:
    """Let Ctrl-C and SIGTERM end this process as `sys.exit` does: kernels and drafts go first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))


def _message(error: Exception) -> str:
    if isinstance(error, DeadKernelError):
        return "the kernel died (of too little memory, perhaps)"
    if isinstance(error, CellTimeoutError):
        return f"the cell took longer than {CELL_TIMEOUT} seconds"
    # Errors raised inside a lesson arrive as their name and their message.
    name = getattr(error, "ename", type(error).__name__)
    return f"{name}: {getattr(error, 'evalue', error)}".strip()
