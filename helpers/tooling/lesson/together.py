"""Execute lessons side by side where there are cores: each in a process, on its share of them."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from helpers.tooling.lesson import drafts, execution, files

AT_ONCE = 4
"""More would take more memory than a laptop has: a lesson needs up to one GB, some more."""
CLOCK = r"\bTimer\b|\bbenchmark\.(timer|measure)\b"
"""What a lesson reads that measures time."""
WAIT = 0.1  # seconds, until we look again whether one has ended


class Job(NamedTuple):
    """A lesson to execute: where to save it, and the values of its parameters."""

    lesson: Path
    to: Path
    values: Mapping[str, int | str]


Results = Iterator[tuple[Job, execution.Execution]]


def execute_into(
    folder: Path, values_for: Mapping[Path, Mapping[str, int | str]], device: str
) -> list[execution.Execution]:
    """Execute lessons, each with its values, into a folder, with a table of how each went.

    On a CPU with several threads, some run side by side. Those that measure time run after them,
    one after another; on an accelerator, all do.
    """
    jobs = []
    for lesson, values in values_for.items():
        # A result is never half of one: until the end, it has the name of a failure.
        draft = folder / f"{lesson.stem}.failed.ipynb"
        jobs.append(Job(lesson, draft, {**values, "device": device}))
    done = {}
    results = _execute(jobs, device, torch.get_num_threads())
    try:
        with closing(results):
            for job, ended in results:
                done[job.lesson] = ended
                result = folder / job.lesson.name
                if ended.failure:
                    result.unlink(missing_ok=True)
                else:
                    job.to.replace(result)
    finally:  # after Ctrl-C, too
        in_order = [done[lesson] for lesson in values_for if lesson in done]
        count = f"{len(done)} of {len(jobs)} lessons were executed"
        table = f"{execution.table(in_order)}\n\n{count}; the results are in {folder}/."
        with drafts.replaced(folder / "table.txt") as text:
            text.write_text(f"{table}\n", "utf-8")
        print(f"\n{table}", flush=True)
    return in_order


def _execute(jobs: Sequence[Job], device: str, threads: int) -> Results:
    """Execute jobs; yield each with its result when it is there."""
    together, alone = _split(jobs, device, threads)
    if together:
        yield from _side_by_side(together, threads)
    for job in alone:
        yield job, execution.execute(*job)


def _split(jobs: Sequence[Job], device: str, threads: int) -> tuple[list[Job], list[Job]]:
    """Split jobs into those that run side by side, if there are two, and those that run alone."""
    together, alone = [], []
    for job in jobs:
        source = "\n".join(cell.source for cell in files.code_cells(files.read(job.lesson)))
        if re.search(CLOCK, source):
            alone.append(job)
        else:
            together.append(job)
    if device != "cpu" or threads == 1 or len(together) == 1:
        return [], list(jobs)
    return together, alone


def _side_by_side(jobs: Sequence[Job], threads: int) -> Results:
    """Execute jobs on so many threads in all. If the caller stops, what still runs is ended."""
    at_once = min(len(jobs), threads, AT_ONCE)
    share = str(threads // at_once)
    waiting = list(jobs)
    running: list[tuple[Job, subprocess.Popen]] = []
    progress = tqdm(total=len(jobs), desc=f"{at_once} side by side", unit="lesson")
    with progress, tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    running.append((job, _start(job, share, Path(folder))))
                time.sleep(WAIT)
                for job, process in list(running):
                    if process.poll() is not None:
                        running.remove((job, process))
                        yield job, _result(job, process, Path(folder))
                        progress.update()
        finally:
            for _, process in running:
                process.terminate()
            for _, process in running:
                process.wait()


def _start(job: Job, share: str, folder: Path) -> subprocess.Popen:
    job.to.unlink(missing_ok=True)  # that of an earlier run
    # It tells of a failure in a file, since what a lesson prints may go to its standard output.
    arguments = [job.lesson, job.to, folder / job.lesson.stem, json.dumps(dict(job.values))]
    return subprocess.Popen(
        [sys.executable, "-m", execution.__name__, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": share},
        process_group=0,  # Ctrl-C reaches this process alone, which then ends them
    )


def _result(job: Job, process: subprocess.Popen, folder: Path) -> execution.Execution:
    if process.returncode:
        failure = f"{job.lesson.name}: its process ended with status {process.returncode}"
    else:
        failure = json.loads((folder / job.lesson.stem).read_text("utf-8"))
    reached = job.to if job.to.exists() else job.lesson
    return execution.Execution(job.lesson, files.read(reached), failure)
