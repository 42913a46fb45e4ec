"""Execute a lesson: the one way in which lessons are run, with papermill, and how failure reads.

The comparison of saved outputs is nbval's, with a kernel of its own.
"""

import ast
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines

import helpers
from helpers.tooling.lesson import files

CELL_TIMEOUT = 600
"""Seconds that a cell may take."""
ENGINE = "lesson"
PEAK = f"""\
import sys
sys.path.append({str(Path(helpers.__file__).parents[1])!r})
from helpers.tooling.lesson import memory"""
"""What a kernel runs before it is asked for its peak memory."""


class Execution:
    """One execution of a lesson: it remembers the cell under way, and the peak memory in the end.

    Attributes:
        lesson: The notebook.
        executed: The notebook as far as it came, None before a kernel is there.
        peak_memory: As `helpers.tooling.lesson.memory.peak` gives it, empty while unknown.
    """

    def __init__(self, lesson: Path) -> None:
        self.lesson = lesson
        self.executed: NotebookNode | None = None
        self.peak_memory: dict[str, int] = {}
        self._cell: NotebookNode | None = None

    def run(
        self,
        values: Mapping[str, int | str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> NotebookNode:
        """Execute the lesson in its own folder; its file stays as it is.

        Args:
            values: Its parameters, where others than its own.
            environment: The environment of its kernel; None means that of this process.

        Returns:
            The executed notebook.

        Raises:
            Exception: Of papermill or nbclient; `failure` makes a sentence of it.
        """
        return papermill.execute_notebook(
            str(self.lesson.absolute()),
            None,
            dict(values or {}),
            engine_name=ENGINE,
            kernel_name="python3",
            language="python",
            progress_bar={"desc": self.lesson.stem},
            cwd=self.lesson.parent.absolute(),
            execution=self,
            environment=environment,
        )

    def failure(self, error: Exception) -> str:
        """Name the cell of the lesson in which an error ended the execution, and the error."""
        if self._cell is None:
            where = "before its first cell"
        else:
            first_line = self._cell.source.strip().partition("\n")[0]
            where = f"{files.place(files.read(self.lesson), self._cell)} `{first_line}`"
        return f"{self.lesson.name}, {where}: {_message(error)}"

    def remember(self, cell: NotebookNode, cell_index: int) -> None:
        """Note which cell begins."""
        self._cell = cell


class LessonClient(PapermillNotebookClient):
    """papermill's client, which asks the kernel for its peak memory after the last cell."""

    def papermill_execute_cells(self) -> None:
        """Execute the cells, as far as they go, then ask."""
        super().papermill_execute_cells()
        reply = self.wait_for_reply(
            self.kc.execute(
                PEAK, silent=True, store_history=False, user_expressions={"peak": "memory.peak()"}
            )
        )
        peak = reply["content"].get("user_expressions", {}).get("peak", {})
        # A copy that runs away from the collection has helpers of its own, which cannot tell.
        self.peak_memory = ast.literal_eval(peak["data"]["text/plain"]) if "data" in peak else {}


class LessonEngine(Engine):
    """papermill's engine with a `LessonClient`."""

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        kernel_name: str,
        execution: Execution,
        environment: Mapping[str, str] | None,
        **_: object,
    ) -> None:
        """Execute the notebook that papermill manages, and note the peak memory."""
        execution.executed = nb_man.nb
        client = LessonClient(
            nb_man,
            kernel_name=kernel_name,
            timeout=CELL_TIMEOUT,
            shutdown_kernel="immediate",  # a busy kernel would not listen to a polite request
            coalesce_streams=True,
            on_cell_start=execution.remember,
            # Errors only: a kernel warns, each time, that its local sockets are not encrypted.
            extra_arguments=["--IPKernelApp.log_level=40"],
        )
        client.execute(env=dict(os.environ if environment is None else environment))
        execution.peak_memory = client.peak_memory


papermill_engines.register(ENGINE, LessonEngine)


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
