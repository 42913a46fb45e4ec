"""Candidates in processes of their own, so that they share neither memory nor caches."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.benchmark import Measurement, TaskSpec
from tqdm import tqdm

from helpers import benchmark, devices, memory
from helpers.study import peers
from helpers.study.candidates import HUGE_PAGES, KEEP_FREED, Candidate, Task

ROOT = Path(__file__).parents[2]
_here: dict[str, Any] = {}  # in the process of a candidate, its state


def run(task: Task, chosen: Iterable[Candidate], **options: Any) -> dict[str, Any]:
    """Measure candidates against each other.

    Args:
        task: The network, the batch and the device.
        chosen: The candidates.
        options: Those of `benchmark.measure`.

    Returns:
        A study as JSON data: the task; `rows`, one for each candidate, with seconds (median, iqr,
        the first run), the bytes held after two runs and the page faults of one, `None` for what is
        not available; and `missing`, `{candidate: why it was not measured}`.
    """
    running, rows, missing = {}, {}, {}
    with ExitStack() as stack:
        for candidate in tqdm(list(chosen), desc="first runs", leave=False):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            try:
                if why := candidate.absent():
                    missing[str(candidate)] = why
                elif candidate.method in peers.JAX:
                    rows[candidate] = _of_jax(candidate.method, task, folder)
                else:
                    running[candidate] = _Process(candidate, task, folder, stack)
            except Exception as error:
                first_line = (str(error).strip() or "no message").splitlines()[0]
                missing[str(candidate)] = f"failed: {type(error).__name__}: {first_line}"
        for candidate, took in benchmark.measure(running, **options).items():
            measured = {"median": took.median, "iqr": took.iqr, "rounds": len(took.times)}
            rows[candidate] = measured | running[candidate].facts
    rows = [candidate._asdict() | row for candidate, row in rows.items()]
    return task._asdict() | {"rows": rows, "missing": missing}


class _Process:
    """A candidate in a process that `stack` ends, timed like torch's `Timer`."""

    def __init__(self, candidate: Candidate, task: Task, folder: str, stack: ExitStack) -> None:
        settings = {"TORCHINDUCTOR_CACHE_DIR": folder}  # so that the first run compiles
        if candidate.allocator == HUGE_PAGES:
            settings["THP_MEM_ALLOC_ENABLE"] = "1"  # read when a process starts
        ignored = signal.signal, (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        self.pool = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"), *ignored))
        with mock.patch.dict(os.environ, settings):  # the first call starts the process
            self.facts = self.pool.submit(_start, candidate, task).result()

    def timeit(self, number: int) -> Measurement:
        seconds, self.facts["faults"] = self.pool.submit(_time, number).result()
        return Measurement(number, seconds, TaskSpec("", ""))


def _start(candidate: Candidate, task: Task) -> dict[str, Any]:
    """Build and run twice; return the time of the first run and the bytes held afterwards."""
    devices.make_repeatable(0)  # GPUs, too, are measured in float32, not TF32
    if candidate.allocator == KEEP_FREED:
        _here["kept"] = memory.keep_freed()
        _here["kept"].__enter__()  # until the process ends
    run = candidate.build(*task.load())
    _here["timer"] = benchmark.timer(run)
    before, start = _held(task), time.perf_counter()
    run()
    _held(task)  # on a GPU, waits until it is done
    first = time.perf_counter() - start
    run()
    return {"first": first, "held": before and _held(task) - before}


def _held(task: Task) -> int | None:
    """Return the bytes held by this process, or by PyTorch on a GPU."""
    if torch.device(task.device).type != "cuda":
        return memory.resident()
    torch.cuda.synchronize(task.device)
    return torch.cuda.memory_reserved(task.device)


def _time(number: int) -> tuple[list[float], int | None]:
    """Time some runs with torch's timer, and count the page faults of one call."""
    before = memory.page_faults()
    seconds = _here["timer"].timeit(number).raw_times
    runs = number + max(2, number // 100)  # including warm-up runs
    return seconds, before and (memory.page_faults() - before) // runs


def _of_jax(method: str, task: Task, folder: str) -> dict[str, Any]:
    """Measure a JAX method: its worker runs all rounds at once, not interleaved."""
    model, images, labels = task.load()
    tensors = {**model.state_dict(), "images": images, "labels": labels}
    inputs = f"{folder}/inputs.npz"
    np.savez(inputs, **{name: tensor.cpu().numpy() for name, tensor in tensors.items()})
    command = [peers.jax_python(), "-m", "helpers.study.jax_worker", method, inputs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout)
