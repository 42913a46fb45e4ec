"""Candidates in processes of their own, so that they share neither memory nor caches."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Measurement, TaskSpec
from tqdm import tqdm

from helpers import benchmark, devices, memory
from helpers.study import peers
from helpers.study.candidates import HUGE_PAGES, KEEP_FREED, Candidate, Task

ROOT = Path(__file__).parents[2]
_here: dict[str, Any] = {}  # in the process of a candidate: its timer
_until_the_end = ExitStack()  # in the process of a candidate: what stays open


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
    running: dict[Candidate, _Process] = {}
    results: dict[Candidate, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for candidate in tqdm(list(chosen), desc="first runs", leave=False):
            why = candidate.absent()
            if why:
                missing[str(candidate)] = why
                continue
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            try:
                if candidate.method in peers.JAX:
                    results[candidate] = _measure_jax(candidate.method, task, folder)
                else:
                    running[candidate] = _Process(candidate, task, folder, stack)
            except Exception as error:  # whatever fails, the others are measured
                first_line = (str(error).strip() or "no message").splitlines()[0]
                missing[str(candidate)] = f"failed: {type(error).__name__}: {first_line}"

        for candidate, took in benchmark.measure(running, **options).items():
            times = {"median": took.median, "iqr": took.iqr, "rounds": len(took.times)}
            results[candidate] = times | running[candidate].facts

    rows = []
    for candidate, result in results.items():
        rows.append(candidate._asdict() | result)
    return task._asdict() | {"rows": rows, "missing": missing}


class _Process:
    """A candidate in a process that `stack` ends, timed like torch's `Timer`."""

    def __init__(self, candidate: Candidate, task: Task, folder: str, stack: ExitStack) -> None:
        settings = {"TORCHINDUCTOR_CACHE_DIR": folder}  # so that the first run compiles
        if candidate.allocator == HUGE_PAGES:
            settings["THP_MEM_ALLOC_ENABLE"] = "1"  # read when a process starts
        pool = ProcessPoolExecutor(
            max_workers=1,
            mp_context=get_context("spawn"),
            initializer=signal.signal,
            initargs=(signal.SIGINT, signal.SIG_IGN),  # Ctrl-C is for the parent
        )
        self.pool = stack.enter_context(pool)
        with _environment(settings):  # the first call starts the process
            self.facts = self.pool.submit(_start, candidate, task).result()

    def timeit(self, number: int) -> Measurement:
        seconds, self.facts["faults"] = self.pool.submit(_time, number).result()
        return Measurement(number, seconds, TaskSpec("", ""))


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes that start in the block."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(candidate: Candidate, task: Task) -> dict[str, Any]:
    """Build and run twice; return the time of the first run and the bytes held afterwards."""
    devices.make_repeatable(0)  # GPUs, too, are measured in float32, not TF32
    device = devices.resolve(task.device)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)  # for which timers wait
    if candidate.allocator == KEEP_FREED:
        _until_the_end.enter_context(memory.keep_freed())
    model, images, labels = task.load()
    run = candidate.build(model, images, labels)
    _here["timer"] = benchmark.timer(run)
    before = _held(task)
    start = time.perf_counter()
    run()
    _held(task)  # on a GPU, waits until it is done
    first = time.perf_counter() - start
    run()
    after = _held(task)
    held = None if before is None or after is None else after - before
    return {"first": first, "held": held}


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
    after = memory.page_faults()
    if before is None or after is None:
        return seconds, None
    warm_up = max(2, number // 100)  # torch's timer begins with as many runs
    return seconds, (after - before) // (number + warm_up)


def _measure_jax(method: str, task: Task, folder: str) -> dict[str, Any]:
    """Measure a JAX method: its worker runs all rounds at once, not interleaved."""
    model, images, labels = task.load()
    arrays = {"images": images.cpu().numpy(), "labels": labels.cpu().numpy()}
    for name, tensor in model.state_dict().items():
        arrays[name] = tensor.cpu().numpy()
    inputs = f"{folder}/inputs.npz"
    np.savez(inputs, **arrays)
    command = [peers.jax_python(), "-m", "helpers.study.jax_worker", method, inputs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(said[-1])
    return json.loads(done.stdout)
