"""The lesson, run once in a process of its own, and answers to it, each in a fork of that.

The solution of an exercise comes into being only after all answers to it are judged.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from IPython.display import display

from helpers.tooling.grading import confinement, judge, processes
from helpers.tooling.grading.submissions import Exercise

QUIET = {
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "agg",
    "TQDM_DISABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
"""A fork goes on with one thread only, so there must be no others, and no GPU."""
REFERENCE = ""
"""The key of the lesson's own solution among answers."""


class Session:
    """A lesson that runs cell by cell, up to the exercises that are judged.

    Args:
        folder: The folder of the lesson.
        secret: Folders that no answer may look into.
    """

    def __init__(self, folder: Path, secret: Sequence[Path]) -> None:
        self._orders, theirs = multiprocessing.Pipe()
        jobs = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        given = [str(theirs.fileno()), str(min(jobs, 8)), str(folder.resolve()), *map(str, secret)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *given],
            env=os.environ | QUIET,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def run(self, cell: str, source: str) -> None:
        """Run a cell of the lesson; raise ValueError if it fails."""
        self._orders.send(("run", cell, source))
        failure = self._answer(cell)
        if failure:
            raise ValueError(f"the lesson itself fails here: {failure}")

    def judge(
        self, exercise: Exercise, answers: Mapping[str, str], hidden: str, seconds: float
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Judge answers to an exercise: `(key, outcome)`, in the order in which they are ready."""
        test = exercise.number, exercise.name, exercise.check.source, hidden
        self._orders.send(("judge", test, dict(answers), seconds))
        for _ in answers:
            yield self._answer(f"exercise {exercise.number}")

    def _answer(self, place: str) -> Any:
        try:
            return self._orders.recv()
        except EOFError:
            raise ValueError(f"the process of the lesson was ended at {place}") from None

    def close(self) -> None:
        """End it, and all that it started."""
        self._orders.close()
        while self._process.poll() is None:  # one that comes during a fork is lost
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)


def _serve(orders: Connection, folder: Path, secret: list[Path], jobs: int) -> None:
    """Do what a session is told, until it is closed or the one who tells is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    processes.adopt_orphans()
    processes.end_with_parent(signal.SIGTERM)
    os.chdir(folder)
    for file in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), file)
    lesson = sys.modules["__main__"] = type(sys)("__main__")
    lesson.display = display
    try:
        while True:
            kind, *order = orders.recv()
            if kind == "run":
                orders.send(_run(*order, vars(lesson)))
            else:
                for each in _judged(vars(lesson), secret, jobs, *order):
                    orders.send(each)
    except (EOFError, BrokenPipeError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        processes.end_descendants()


def _run(cell: str, source: str, lesson: dict[str, Any]) -> str:
    try:
        judge.run(source, lesson, f"<{cell} of the lesson>")
    except Exception as error:
        return f"cell {cell}: {type(error).__name__}: {error}"
    return ""


def _judged(
    lesson: dict[str, Any],
    secret: list[Path],
    jobs: int,
    test: tuple[int, str, str, str],
    answers: dict[str, str],
    seconds: float,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Have each answer judged by a keeper, as many at once as there are cores."""
    number, name, check, hidden = test
    waiting, running = list(answers.items()), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            key, source = waiting.pop(0)
            reader, writer = multiprocessing.Pipe(duplex=False)
            keeper = os.fork()
            if not keeper:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                work = partial(judge.judge, lesson, number, name, source, check, hidden)
                with contextlib.suppress(BaseException):
                    writer.send(confinement.keep(work, seconds, secret))
                os._exit(0)
            writer.close()
            running[reader] = key, keeper
        for reader in wait(list(running)):
            key, keeper = running.pop(reader)
            try:
                outcome = reader.recv()
            except EOFError:
                outcome = {"verdict": "your answer ended the process that watched it"}
            reader.close()
            os.waitpid(keeper, 0)
            yield key, outcome


if __name__ == "__main__":
    descriptor, jobs, folder, *secret = sys.argv[1:]
    _serve(Connection(int(descriptor)), Path(folder), [Path(each) for each in secret], int(jobs))
