"""Candidates in processes of their own: none changes another's memory, and each can be weighed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Measurement, TaskSpec
from tqdm import tqdm

from helpers import benchmark, data
from helpers.study import candidates, peers
from helpers.study.facts import HUGE_PAGES, Candidate, Missing, Row, Study, Task

ROOT = Path(__file__).parents[2]


def run(group: str, task: Task, chosen: Iterable[Candidate], **options: Any) -> Study:
    """Measure candidates of a group of `METHODS`; `options` are those of `benchmark.measure`."""
    with started(group, task, chosen) as (running, missing):
        times = benchmark.measure(running, **options)
        for candidate, why in times.failed.items():
            missing.append(Missing(candidate, absent=False, why=why))
        rows = []
        for candidate, measured in times.items():
            process, faults = running[candidate], None
            with suppress(RuntimeError):  # its process ended when it was interrupted
                faults = process.ask("faults")  # after the timed runs, so that it is like them
            numbers = {"median": measured.median, "iqr": measured.iqr, "faults": faults}
            rows.append(Row(candidate, rounds=len(measured.times), **numbers, **process.weight))
    return Study(group, task, tuple(rows), tuple(missing), times.cut_short)


class Process:
    """One candidate in a process of its own, which can be built, timed and asked."""

    def __init__(self, group: str, candidate: Candidate, folder: Path) -> None:
        self.group, self.candidate, self.folder = group, candidate, folder
        self.is_jax = candidate.method in peers.jax.NAMES
        command = [sys.executable, "-m", "helpers.study.worker"]
        if self.is_jax:
            command = [peers.jax.python(), str(peers.jax.WORKER)]
        # A cache of its own, so that compiling costs what it costs the first time.
        settings = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled"), "JAX_PLATFORMS": "cpu"}
        if candidate.allocator == HUGE_PAGES:  # read when a process starts
            settings["THP_MEM_ALLOC_ENABLE"] = "1"
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # Ctrl-C is for the process that measures
        )

    def build(self, task: Task) -> None:
        """Make the function that is timed, and remember what `Worker.weigh` found of it."""
        if self.is_jax:
            inputs, model = self.folder / "inputs.npz", candidates.make_model(task)
            images, labels = data.load_batch(task.dataset, task.batch_size)
            arrays = {**model.state_dict(), "images": images, "labels": labels}
            np.savez(inputs, **{name: array.cpu().numpy() for name, array in arrays.items()})
            given = {"method": self.candidate.method, "model": task.model, "inputs": str(inputs)}
        else:
            batch = self.folder / "batch.pt"
            torch.save(data.load_batch(task.dataset, task.batch_size), batch)
            given = {"candidate": asdict(self.candidate), "task": asdict(task)}
            given |= {"group": self.group, "batch": str(batch), "threads": torch.get_num_threads()}
        self.ask("build", **given)
        self.weight = self.ask("weigh")

    def timeit(self, number: int) -> Measurement:
        """Time it there, as `torch.utils.benchmark.Timer.timeit` does here."""
        seconds = self.ask("time", runs=number)
        return Measurement(number, seconds, TaskSpec(stmt=str(self.candidate), setup=""))

    def ask(self, name: str, **given: Any) -> Any:
        """Let the process call a method; raise RuntimeError if it raises there, or has ended."""
        try:
            print(json.dumps({"name": name, **given}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        except KeyboardInterrupt:  # its answer would be taken for that to the next request
            self._process.kill()
            self._process.stdout.read()  # it may have answered before it ended
            raise
        if not line:
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:] or ["no message"]
            code = self._process.wait()
            raise RuntimeError(
                f"the process of {self.candidate} ended with status {code}: {last[0]}"
            )
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["answer"]

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()


@contextmanager
def started(
    group: str, task: Task, chosen: Iterable[Candidate]
) -> Iterator[tuple[dict[Candidate, Process], list[Missing]]]:
    """Start a process for each candidate, yield those that could be built and what is missing."""
    running: dict[Candidate, Process] = {}
    missing = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for number, candidate in enumerate(chosen):
            if sentence := candidates.absent(candidate):
                missing.append(Missing(candidate, absent=True, why=sentence))
                continue
            own = Path(folder) / str(number)
            own.mkdir()
            running[candidate] = Process(group, candidate, own)
            stack.callback(running[candidate].end)
        for candidate, process in tqdm(list(running.items()), desc="first runs", leave=False):
            try:
                process.build(task)
            except RuntimeError as error:
                missing.append(Missing(candidate, absent=False, why=str(error)))
                del running[candidate]
        yield running, missing
