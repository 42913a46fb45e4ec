"""Candidates in processes of their own: none changes another's memory, and each can be weighed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.benchmark import Measurement, TaskSpec
from tqdm import tqdm

from helpers import data
from helpers.study import candidates, peers, worker
from helpers.study.facts import HUGE_PAGES, Candidate, Missing, Task

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {HUGE_PAGES: {"THP_MEM_ALLOC_ENABLE": "1"}}
"""What an allocator wants to be set before a process starts."""


class Process:
    """One candidate in a process of its own, which can be built, timed, weighed and asked.

    Attributes:
        weight: What `weigh` of `helpers.study.worker` found when it was last built: seconds of the
            `first` run; where known, `peak` bytes above those at the start, and bytes that are
            still `held` when the result is gone.
    """

    def __init__(self, group: str, candidate: Candidate, folder: Path) -> None:
        self.group, self.candidate, self.folder = group, candidate, folder
        self.is_jax = candidate.method in peers.jax.NAMES
        environment = ENVIRONMENT.get(candidate.allocator, {})
        command = [sys.executable, "-m", worker.__name__]
        if self.is_jax:
            command = [peers.jax.python(), str(peers.jax.WORKER)]
        # A cache of its own, so that compiling costs what it costs the first time.
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
        self._requests = 0
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **cache, **environment, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def build(self, task: Task) -> None:
        """Make the function that is timed, run it twice, and remember what that took.

        Raises:
            RuntimeError: It failed there, with the reason.
        """
        if self.is_jax:
            model, images, labels = candidates.load(task)
            inputs = self.folder / "inputs.npz"
            arrays = {**model.state_dict(), "images": images, "labels": labels}
            np.savez(inputs, **{name: array.cpu().numpy() for name, array in arrays.items()})
            given = {"method": self.candidate.method, "model": task.model}
            self._ask("build", inputs=str(inputs), **given)
        else:
            threads = torch.get_num_threads()
            batch = self.folder / "batch.pt"
            torch.save(data.load_batch(task.dataset, task.batch_size), batch)
            given = {"candidate": asdict(self.candidate), "task": asdict(task)}
            self._ask("build", group=self.group, batch=str(batch), threads=threads, **given)
        self.weight = self._ask("weigh")

    def timeit(self, number: int) -> Measurement:
        """Time it there, as `torch.utils.benchmark.Timer.timeit` does here."""
        seconds = self._ask("time", runs=number)
        return Measurement(number, seconds, TaskSpec(stmt=str(self.candidate), setup=""))

    def faults(self) -> int | None:
        """Run it there once more, and count the page faults; `None` where nothing counts them."""
        return self._ask("faults")

    def result(self) -> dict[str, Tensor]:
        """Run it there once, and get what it returned."""
        path = self.folder / ("result.npz" if self.is_jax else "result.pt")
        self._ask("save", path=str(path))
        try:
            if not self.is_jax:
                return torch.load(path)
            return {name: torch.from_numpy(array) for name, array in np.load(path).items()}
        finally:
            path.unlink()

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _ask(self, name: str, **given: Any) -> Any:
        self._requests += 1
        try:
            request = json.dumps({"number": self._requests, "name": name, **given})
            print(request, file=self._process.stdin, flush=True)
            while line := self._process.stdout.readline():
                reply = json.loads(line)
                if reply["number"] == self._requests:  # else to one that was interrupted
                    break
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:] or ["it said nothing"]
            code = self._process.wait()
            raise RuntimeError(
                f"the process of {self.candidate} ended with status {code}: {last[0]}"
            )
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["answer"]


class Running(dict[Candidate, Process]):
    """`{candidate: process}` of those that run, and a reason for each of the others.

    Attributes:
        missing: What is not installed here, or could not be built.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: list[Missing] = []

    def build(self, task: Task) -> None:
        """Build all for a task, one after the other; what fails is left out, with its reason."""
        progress = tqdm(list(self.items()), leave=False)
        for candidate, process in progress:
            progress.set_description(f"first runs: {candidate}")
            try:
                process.build(task)
            except RuntimeError as error:
                self.missing.append(Missing(candidate, absent=False, why=str(error)))
                self.pop(candidate).end()


@contextmanager
def started(group: str, chosen: Iterable[Candidate] | None = None) -> Iterator[Running]:
    """Start a process for each candidate, and end them all.

    Args:
        group: One of `helpers.study.candidates.GROUPS`.
        chosen: Which candidates, of the methods of the group; `None` means those of the group.

    Yields:
        The processes. Build a task before timing them.

    Raises:
        ValueError: There is no such group or method.
    """
    if group not in candidates.GROUPS:
        raise ValueError(f"group must be one of {', '.join(candidates.GROUPS)}, got {group!r}")
    known = candidates.GROUPS[group]
    chosen = known.candidates if chosen is None else tuple(chosen)
    for candidate in chosen:
        if candidate.method not in known.methods:
            methods = ", ".join(known.methods)
            raise ValueError(f"method must be one of {methods}, got {candidate.method!r}")
    running = Running()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for number, candidate in enumerate(chosen):
            if sentence := known.absent(candidate):
                running.missing.append(Missing(candidate, absent=True, why=sentence))
                continue
            own = Path(folder) / str(number)
            own.mkdir()
            running[candidate] = Process(group, candidate, own)
            stack.callback(running[candidate].end)
        yield running
