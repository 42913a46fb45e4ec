"""Execute lessons on a device into `build/<device>/`, and tell how each of them went.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.run --help`.
"""

import argparse
import ast
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import papermill
from nbclient.exceptions import DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines

import helpers
from helpers import devices
from helpers.tooling import lessons, parameters
from helpers.tooling.execution import Execution, exit_on_sigterm

BUILD = Path("build")
ENGINE = "lesson"


@dataclass
class Result:
    """How the execution of a lesson went."""

    lesson: Path
    seconds: float
    failure: str | None = None
    memory: dict[str, int] = field(default_factory=dict)


class LessonClient(PapermillNotebookClient):
    """papermill's client, which asks the kernel for its peak memory after the last cell."""

    def papermill_execute_cells(self) -> None:
        """Execute the cells, then file the memory in the notebook's papermill metadata."""
        super().papermill_execute_cells()
        root = str(Path(helpers.__file__).parents[1])
        reply = self.wait_for_reply(
            self.kc.execute(
                f"import sys; sys.path.append({root!r}); from helpers.tooling import memory",
                silent=True,
                store_history=False,
                user_expressions={"peak": "memory.peak()"},
            )
        )
        peak = reply["content"]["user_expressions"]["peak"]
        self.nb.metadata.papermill["peak_memory"] = ast.literal_eval(peak["data"]["text/plain"])


class LessonEngine(Engine):
    """papermill's engine with a `LessonClient`."""

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: NotebookExecutionManager, kernel_name: str, execution: Execution, **_: object
    ) -> None:
        """Execute the notebook that papermill manages."""
        LessonClient(nb_man, kernel_name=kernel_name, **execution.options()).execute()


papermill_engines.register(ENGINE, LessonEngine)
