"""Fair measurement: interleaved rounds after a warm-up, medians with spread; peak memory.

Lesson 7 says why each of these.
"""

import logging
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry
from tqdm import tqdm

# A CUDA build of torch on a machine without a GPU warns on import that it cannot build extensions.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
from torch.utils.benchmark import Measurement, Timer  # noqa: E402


def measure(
    candidates: Mapping[Any, Any], *, rounds: int = 5, min_run_time: float = 0.05
) -> dict[Any, Measurement]:
    """Time functions against each other, in rounds.

    In each round every candidate runs for a while, so a slow phase of the machine affects all of
    them. `torch.utils.benchmark` warms up, waits for the GPU, and times.

    Args:
        candidates: `{name: function without arguments}`; instead of a function, an object with
            `timeit(number)`, such as torch's `Timer`.
        rounds: How often each candidate is timed, at least 1.
        min_run_time: Roughly how many seconds each candidate runs in a round.

    Returns:
        `{name: measurement}`, with `median` and `iqr` in seconds.

    Raises:
        ValueError: There is no candidate, or `rounds` is below 1.
    """
    if not candidates or rounds < 1:
        got = f"{len(candidates)} and {rounds}"
        raise ValueError(f"need at least 1 candidate and 1 round, got {got}")
    timers = {}
    for name, candidate in candidates.items():
        timers[name] = candidate if hasattr(candidate, "timeit") else timer(candidate)
    runs = dict.fromkeys(timers, 1)  # of each candidate in a round
    finished: dict[Any, list[Measurement]] = {name: [] for name in timers}
    # Round 0 warms up and sets the run counts.
    for number in tqdm(range(1 + rounds), desc="rounds", leave=False):
        for name, candidate_timer in timers.items():
            # At least two uncounted runs come first: they allocate memory, pick kernels.
            measurement = candidate_timer.timeit(runs[name])
            if number:
                finished[name].append(measurement)
            else:
                runs[name] = max(1, round(min_run_time / measurement.median))
    merged = {}
    for name, measurements in finished.items():
        merged[name] = Measurement.merge(measurements)[0]
    return merged


def table(measurements: Mapping[str, Measurement], *, reference: str) -> pd.DataFrame:
    """Tabulate times with their spread, each also as a multiple of one of them.

    Args:
        measurements: What `measure` returned.
        reference: The name of the candidate whose time is the unit.

    Returns:
        A row for each candidate: median and interquartile range in milliseconds, and the time as a
        multiple of the unit. One round has no spread.

    Raises:
        ValueError: `reference` names no measured candidate.
    """
    if reference not in measurements:
        raise ValueError(f"reference must be one of {', '.join(measurements)}, got {reference!r}")
    unit = measurements[reference].median
    rows = {}
    for name, measurement in measurements.items():
        spread = measurement.iqr * 1e3 if len(measurement.times) > 1 else None
        rows[name] = measurement.median * 1e3, spread, measurement.median / unit
    columns = ["median (ms)", "spread (ms)", f"times {reference}"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=float)
    return frame.round(2).rename_axis("method")


def timer(candidate: Callable[[], Any]) -> Timer:
    """Make a torch `Timer` for `candidate()` with torch's thread count: its default is one."""
    threads = torch.get_num_threads()
    names = {"candidate": candidate}
    return Timer("candidate()", globals=names, num_threads=threads, timer=_now)


def _now() -> float:
    """Return the time in seconds, after the current accelerator has done its work.

    `Timer` itself waits for CUDA alone.
    """
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


class Memory(NamedTuple):
    """Bytes of tensors: the peak during a function, and those kept alive by its result."""

    peak: int
    kept: int


def memory(run: Callable[[], Any]) -> Memory:
    """Count the bytes of the tensors that a function makes, in the same way on any device.

    Tensors that existed before and scratch space inside single operations are not counted; torch's
    profiler, as in lesson 3, counts scratch space on GPUs.

    Args:
        run: A function without arguments. It is called once.

    Returns:
        The peak while it ran, and what was still alive when it had returned its result.
    """
    sizes: dict[int, int] = {}  # of the storages that are alive
    now = peak = 0

    def forget(key: int) -> None:
        nonlocal now
        now -= sizes.pop(key)

    def count(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal now, peak
        of_arguments = set()
        for storage in _storages((args, kwargs)):
            of_arguments.add(id(storage))
        for storage in _storages(result):
            key = id(storage)
            # A view of an argument is no new memory, and a storage counts once.
            if key in of_arguments or key in sizes:
                continue
            sizes[key] = storage.nbytes()
            now += storage.nbytes()
            peak = max(peak, now)
            weakref.finalize(storage, forget, key)

    with each_operation(count):
        result = run()
        kept = now
    del result
    return Memory(peak, kept)


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    """List the storages of the tensors in a tree."""
    if isinstance(tree, Tensor):
        return [tree.untyped_storage()]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    storages = []
    for item in tree:
        storages += _storages(item)
    return storages


def each_operation(note: Callable[[Any, Any, Any, Any], None]) -> Any:
    """Return a context in which `note(func, args, kwargs, result)` is called for each operation."""
    # Its address is private, but torch's notes on extending it give it.
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC2701

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            note(func, args, kwargs, result)
            return result

    return Noted()


def flops(run: Callable[[], Any]) -> int:
    """Count the floating point operations of matrix products, convolutions and attention.

    Unlike `FlopCounterMode`, whose formulas it uses, it does not hook modules, so it can count
    gradients with respect to their inputs. The rest (sums, activations, copies) is not counted.

    Args:
        run: A function without arguments. It is called once.

    Returns:
        The operations: 2 for each multiply-add.
    """
    total = 0

    def add(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal total
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            total += formula(*args, **kwargs, out_val=result)

    with each_operation(add):
        run()
    return total
