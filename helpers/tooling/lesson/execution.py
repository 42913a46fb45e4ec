"""Execute a lesson with papermill, and report how far it got.

As a command, `python -m helpers.tooling.lesson.execution LESSON TO TOLD VALUES` writes the failure
or null into the file TOLD; VALUES and what it writes are JSON.
"""

import ast
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import papermill
from nbclient.exceptions import CellTimeoutError
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines

import helpers
from helpers.tooling.lesson import endings, environment, files, form

OPTIONS = {
    "timeout": 600,  # seconds for a cell
    "shutdown_kernel": "immediate",  # a busy kernel would not listen to a polite request
    "coalesce_streams": True,
    # Errors only, as a kernel warns each time that its local sockets are not encrypted; and figures
    # of twice the resolution, at the size that they have on a screen.
    "extra_arguments": [
        "--IPKernelApp.log_level=40",
        "--InlineBackend.figure_formats={'retina'}",
    ],
}
PEAK = f"""\
import sys
sys.path.append({str(Path(helpers.__file__).parents[1])!r})
from helpers.memory import high_water
peak = {{"host": high_water()}} if high_water() else {{}}
torch = sys.modules.get("torch")
if torch and torch.cuda.is_initialized():
    # Reserved, not allocated: a benchmark resets the peaks, after which PyTorch still counts what
    # it holds in reserve, but not what was allocated before.
    peak["GPU"] = sum(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count())))"""
"""What a kernel runs before it is asked for its peak memory, in bytes."""


class _Client(PapermillNotebookClient):
    def papermill_execute_cells(self) -> None:
        super().papermill_execute_cells()
        form.describe_figures(self.nb)
        request = self.kc.execute(PEAK, silent=True, user_expressions={"peak": "peak"})
        reply = self.wait_for_reply(request)["content"]
        if reply["status"] == "ok":  # helpers beside a copy of a lesson need not have `memory`
            peak = reply["user_expressions"]["peak"]["data"]["text/plain"]
            self.nb.metadata["peak_memory"] = ast.literal_eval(peak)


class _Engine(NBClientEngine):
    @classmethod
    def execute_managed_notebook(cls, nb_man: object, kernel_name: str, **_: object) -> None:
        _Client(nb_man, kernel_name=kernel_name, **OPTIONS).execute()


papermill_engines.register("lesson", _Engine)


class Execution(NamedTuple):
    """How the execution of a lesson went."""

    lesson: Path
    notebook: NotebookNode  # as far as it got
    failure: str | None  # which cell failed, and how, in a sentence


def execute(
    lesson: Path, to: Path, values: Mapping[str, int | str] | None = None, *, progress: bool = True
) -> Execution:
    """Execute a lesson in its own folder, and save it in another file as far as it gets.

    A figure that the saved lesson has and that is not drawn is a failure, too.
    """
    environment.prepare()
    to.parent.mkdir(parents=True, exist_ok=True)
    failure = None
    try:
        papermill.execute_notebook(
            lesson,
            to,
            values,
            engine_name="lesson",
            kernel_name=environment.KERNEL,  # whatever the front end wrote that saved the lesson
            language="python",
            cwd=lesson.parent,
            progress_bar={"desc": lesson.stem} if progress else False,
        )
    except papermill.PapermillExecutionError as error:
        failure = f"{error.ename}: {error.evalue}"
    except (CellTimeoutError, RuntimeError) as error:
        # A kernel that dies raises DeadKernelError, a RuntimeError; one that does not start raises
        # a plain RuntimeError.
        failure = str(error).partition("\n")[0]
    saved = files.read(lesson)
    notebook = files.read(to)
    if failure:
        failure = f"{lesson.name}, {_place_reached(saved, notebook)}: {failure}"
    else:
        lost = _lost_figure(saved, notebook)
        if lost:
            failure = f"{lesson.name}, {lost}: its saved figure is not drawn (clear it if it went)"
    return Execution(lesson, notebook, failure)


def _place_reached(lesson: NotebookNode, executed: NotebookNode) -> str:
    """Name the last cell of a lesson that has ended, by an error or not."""
    ended = set()
    for cell in executed.cells:
        if cell.metadata.get("papermill", {}).get("end_time"):
            ended.add(cell.id)
    place = "before its first cell"
    for cell in lesson.cells:  # not of `executed`, to which papermill adds a cell with parameters
        if cell.id in ended:
            place = files.place(lesson, cell)
    return place


def _lost_figure(saved: NotebookNode, executed: NotebookNode) -> str | None:
    """Name the first cell of a lesson that has a saved figure and drew none."""
    drawn = set()
    for cell in files.code_cells(executed):
        if _has_figure(cell):
            drawn.add(cell.id)
    for cell in files.code_cells(saved):
        if _has_figure(cell) and cell.id not in drawn:
            return files.place(saved, cell)
    return None


def _has_figure(cell: NotebookNode) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def table(done: Sequence[Execution]) -> str:
    """Lay out how lessons went: result, run time, peak memory."""
    lines = [f"{'lesson':<26}  result  run time  peak memory"]
    for ended in done:
        metadata = ended.notebook.metadata
        result = "failed" if ended.failure else "passed"
        # Nothing was noted of a lesson whose process was killed.
        seconds = metadata.get("papermill", {}).get("duration") or math.nan
        sizes = []
        for kind, size in metadata.get("peak_memory", {}).items():
            sizes.append(f"{size / 2**20:,.0f} MiB ({kind})")
        stem = ended.lesson.stem
        lines.append(f"{stem:<26}  {result}  {seconds:>6.1f} s  {', '.join(sizes)}")
    return "\n".join(lines)


if __name__ == "__main__":
    endings.cleanly_on_signals()
    endings.in_one_sentence()
    endings.with_the_parent()
    _lesson, _to, _told, _values = sys.argv[1:]
    _ended = execute(Path(_lesson), Path(_to), json.loads(_values), progress=False)
    Path(_told).write_text(json.dumps(_ended.failure), "utf-8")
