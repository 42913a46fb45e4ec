"""Candidates in processes of their own: none changes another's memory, and each can be weighed."""

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

from helpers import benchmark, data, devices, memory
from helpers.study import candidates, peers
from helpers.study.records import HUGE_PAGES, KEEP_FREED, Candidate, Missing, Row, Study, Task

ROOT = Path(__file__).parents[2]
_here: dict[str, Any] = {}  # in the process of a candidate, what was built there


def run(group: str, task: Task, chosen: Iterable[Candidate], **options: Any) -> Study:
    """Measure candidates of a group of `METHODS`; `options` are those of `benchmark.measure`."""
    running: dict[Candidate, Process] = {}
    rows, missing = [], []
    batch = [each.numpy() for each in data.load_batch(task.dataset, task.batch_size)]
    with ExitStack() as stack:
        for candidate in tqdm(list(chosen), desc="first runs", leave=False):
            if why := candidates.absent(candidate, task):
                missing.append(Missing(candidate, absent=True, why=why))
                continue
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            try:
                if candidate.method in peers.JAX:
                    rows.append(of_jax(candidate, task, batch, folder))
                else:
                    running[candidate] = Process(group, candidate, task, batch, folder, stack)
            except Exception as error:
                missing.append(Missing(candidate, False, benchmark.in_one_line(error)))
        times = benchmark.measure(running, **options)
    missing += [Missing(each, absent=False, why=why) for each, why in times.failed.items()]
    for candidate, took in times.items():
        weight = running[candidate].weight
        rows.append(Row(candidate, took.median, took.iqr, rounds=len(took.times), **weight))
    return Study(group, task, rows, missing, times.cut_short)


class Process:
    """A candidate, built and weighed in a process that `stack` ends; timed as torch's `Timer`."""

    def __init__(
        self,
        group: str,
        candidate: Candidate,
        task: Task,
        batch: list[np.ndarray],
        folder: str,
        stack: ExitStack,
    ) -> None:
        # A cache of its own, so that compiling costs what it costs the first time.
        settings = {"TORCHINDUCTOR_CACHE_DIR": folder}
        if candidate.allocator == HUGE_PAGES:  # read when a process starts
            settings["THP_MEM_ALLOC_ENABLE"] = "1"
        ignored = signal.signal, (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who measures
        self.pool = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"), *ignored))
        given = group, candidate, task, batch, torch.get_num_threads()
        with mock.patch.dict(os.environ, settings):  # the first call starts the process
            self.weight = self.pool.submit(_weigh, *given).result()

    def timeit(self, number: int) -> Measurement:
        """Time it there, as `torch.utils.benchmark.Timer.timeit` does here."""
        seconds, self.weight["faults"] = self.pool.submit(_time, number).result()
        return Measurement(number, seconds, TaskSpec("", ""))


def _weigh(
    group: str, candidate: Candidate, task: Task, batch: list[np.ndarray], threads: int
) -> dict[str, Any]:
    """Build and run twice: how long the first takes, the memory at most and after."""
    devices.make_repeatable(0)  # on a GPU, too, float32 is measured, and not TF32
    torch.set_num_threads(threads)
    if candidate.allocator == KEEP_FREED:
        _here["kept"] = memory.keep_freed()
        _here["kept"].__enter__()  # until the process ends
    device = torch.device(task.device)
    images, labels = (torch.from_numpy(each).to(device) for each in batch)
    run = candidates.build(group, candidate, candidates.make_model(task), images, labels)
    _here["timer"] = benchmark.timer(run)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # to what is in use now
    before, start = _used(device), time.perf_counter()
    run()
    _used(device)  # on a GPU, waits until it is done
    first = time.perf_counter() - start
    run()
    peak, held = (b and a - b for b, a in zip(before, _used(device), strict=True))
    return {"first": first, "peak": peak, "held": held}


def _used(device: torch.device) -> tuple[int | None, int | None]:
    """Return the bytes that were in use at most, and those held now; on a GPU, by PyTorch."""
    if device.type != "cuda":
        return memory.high_water(), memory.resident()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device), torch.cuda.memory_reserved(device)


def _time(number: int) -> tuple[list[float], int | None]:
    """Time so many runs with torch's timer, and count the page faults of one of its calls."""
    before = memory.page_faults()
    seconds = _here["timer"].timeit(number).raw_times
    runs = number + max(2, number // 100)  # with those that warm up
    return seconds, before and (memory.page_faults() - before) // runs


def of_jax(candidate: Candidate, task: Task, batch: list[np.ndarray], folder: str) -> Row:
    """Measure a method of JAX: its worker takes all rounds at once, not in turns."""
    state = candidates.make_model(task).state_dict()
    weights = {name: each.cpu().numpy() for name, each in state.items()}
    inputs = f"{folder}/inputs.npz"
    np.savez(inputs, images=batch[0], labels=batch[1], **weights)
    command = [peers.jax_python(), "-m", "helpers.study.jax_worker", candidate.method, inputs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return Row(candidate, **json.loads(done.stdout))
