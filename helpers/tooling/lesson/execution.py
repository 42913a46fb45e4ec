"""Execute a lesson, as far as it goes: the one way in which lessons are run, and how failure reads.

The comparison of saved outputs is nbval's, with a kernel of its own.
"""

import ast
import logging
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from tqdm import tqdm

import helpers
from helpers.tooling.lesson import files

CELL_TIMEOUT = 600
"""Seconds that a cell may take."""
PEAK = f"""\
import sys
sys.path.append({str(Path(helpers.__file__).parents[1])!r})
from helpers.memory import high_water
peak = {{"host": high_water()}} if high_water() else {{}}
torch = sys.modules.get("torch")
if torch and torch.cuda.is_initialized():
    # Reserved, not allocated: a benchmark resets the peaks, after which PyTorch still counts what
    # it holds in reserve, but not what was allocated before.
    peak["cuda"] = sum(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count())))"""
"""What a kernel runs before it is asked for its peak memory."""


@dataclass
class Execution:
    """How the execution of a lesson went."""

    lesson: Path
    notebook: NotebookNode  # as far as it came
    failure: str | None = None  # which cell failed, and how, in a sentence
    seconds: float = 0.0  # with the start of the kernel
    peak_memory: dict[str, int] = field(default_factory=dict)
    """The most bytes at once, as far as known: `"host"` resident, `"cuda"` reserved by PyTorch."""


def execute(lesson: Path, values: Mapping[str, int | str] | None = None) -> Execution:
    """Execute a lesson in its own folder, with its own parameters or others; its file stays."""
    notebook = load_notebook_node(str(lesson))
    if values:
        notebook = parameterize_notebook(notebook, dict(values))
    for cell in files.code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    execution = Execution(lesson, notebook)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        shutdown_kernel="immediate",  # a busy kernel would not listen to a polite request
        coalesce_streams=True,
        record_timing=False,
        # Errors only: a kernel warns, each time, that its local sockets are not encrypted. And
        # figures of twice the resolution, at the size that they have on a screen.
        extra_arguments=["--IPKernelApp.log_level=40", "--InlineBackend.figure_formats={'retina'}"],
    )
    start = time.perf_counter()
    with client.setup_kernel(cwd=str(lesson.parent.absolute())):
        try:
            for number, cell in enumerate(tqdm(notebook.cells, desc=lesson.stem)):
                client.execute_cell(cell, number)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            first_line = cell.source.strip().partition("\n")[0]
            where = f"{files.place(files.read(lesson), cell)} `{first_line}`"
            execution.failure = f"{lesson.name}, {where}: {_message(error)}"
            answers = isinstance(error, CellExecutionError)
        else:
            answers = True
        execution.peak_memory = _peak(client) if answers else {}
    execution.seconds = time.perf_counter() - start
    return execution


def _peak(client: NotebookClient) -> dict[str, int]:
    """Ask a kernel for the most memory that it has held at once."""
    asked = client.kc.execute(
        PEAK, silent=True, store_history=False, user_expressions={"peak": "peak"}
    )
    answer = client.wait_for_reply(asked)["content"].get("user_expressions", {}).get("peak", {})
    # A copy that runs away from the collection may have helpers of its own, which cannot tell.
    return ast.literal_eval(answer["data"]["text/plain"]) if "data" in answer else {}


def _message(error: Exception) -> str:
    if isinstance(error, DeadKernelError):
        return "the kernel died (of too little memory, perhaps)"
    if isinstance(error, CellTimeoutError):
        return f"the cell took longer than {CELL_TIMEOUT} seconds"
    return f"{error.ename}: {error.evalue}".strip()


def end_cleanly_on_signals() -> None:
    """Let Ctrl-C and SIGTERM end this process as `sys.exit` does: kernels and drafts go first."""

    def end(received: int, frame: object) -> None:
        logging.getLogger("asyncio").disabled = True  # it would tell of the task that this ends
        sys.exit(128 + received)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
