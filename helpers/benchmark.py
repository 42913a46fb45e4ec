"""Fair measurement: candidates warmed up and interleaved, medians with spread; peak memory."""

import logging
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from tqdm import tqdm

# A CUDA build of torch on a machine without a GPU warns on import that it cannot build extensions.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
from torch.utils.benchmark import Measurement, Timer  # noqa: E402


def measure(
    candidates: dict[str, Callable[[], Any]], *, rounds: int = 5, min_run_time: float = 0.05
) -> dict[str, Measurement]:
    """Time functions against each other, in rounds.

    In each round every candidate runs for a while, so that a machine that slows down slows all of
    them. `torch.utils.benchmark` warms up, waits for the GPU, and times.

    Args:
        candidates: `{name: function without arguments}`.
        rounds: How often each candidate is timed, at least 1.
        min_run_time: Seconds that each candidate runs for, at least, in each round.

    Returns:
        `{name: measurement}`, with `median` and `iqr` in seconds.

    Raises:
        ValueError: There is no candidate, or `rounds` is below 1.
    """
    if not candidates or rounds < 1:
        raise ValueError(
            f"needs a candidate and a round at least, got {len(candidates)} and {rounds}"
        )
    timers = {
        name: Timer("candidate()", globals={"candidate": run}, num_threads=torch.get_num_threads())
        for name, run in candidates.items()
    }
    numbers = {}
    for name, timer in timers.items():
        # The timer runs twice before it counts: memory is allocated, kernels are picked.
        once = timer.timeit(1).median
        numbers[name] = max(1, round(min_run_time / once))
    measurements = {name: [] for name in timers}
    for _ in tqdm(range(rounds), desc="timing", unit="round", leave=False):
        for name, timer in timers.items():
            measurements[name].append(timer.timeit(numbers[name]))
    return {name: Measurement.merge(runs)[0] for name, runs in measurements.items()}


def table(measurements: dict[str, Measurement], *, reference: str) -> pd.DataFrame:
    """Set out times, their spread, and each as a multiple of one of them.

    Args:
        measurements: What `measure` returned.
        reference: The name of the candidate that the others are multiples of.

    Returns:
        A row for each candidate: median and interquartile range in milliseconds, and how many
        times the reference it takes: 2.0 takes twice as long, 0.5 half as long.

    Raises:
        ValueError: No candidate has the reference's name.
    """
    if reference not in measurements:
        raise ValueError(f"reference must be one of {', '.join(measurements)}, got {reference!r}")
    rows = {
        name: {
            "median (ms)": round(measurement.median * 1e3, 2),
            "spread (ms)": round(measurement.iqr * 1e3, 2),
            f"times {reference}": round(measurement.median / measurements[reference].median, 2),
        }
        for name, measurement in measurements.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


class Memory(NamedTuple):
    """Bytes of tensors: at the worst moment of a function, and kept alive by its result."""

    peak: int
    kept: int


def memory(run: Callable[[], Any]) -> Memory:
    """Count the bytes of the tensors that a function makes.

    Counted are the tensors that PyTorch makes while the function runs, intermediate values and
    results alike, on any device. Not counted are what existed before and the scratch space inside
    single operations.

    Args:
        run: A function without arguments. It is called once.

    Returns:
        The peak while it ran, and what was still alive when it had returned its result.
    """
    with _LiveBytes() as live:
        result = run()
        kept = live.now
    del result
    return Memory(live.peak, kept)


class _LiveBytes(TorchDispatchMode):
    """Count the bytes of tensor storage that come into being and go while this mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before = {
            tensor.untyped_storage()._cdata
            for tensor in tree_iter((args, kwargs))
            if isinstance(tensor, Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                # A view of an argument is no new memory, and a storage counts once.
                if key not in before and key not in self.sizes:
                    self.sizes[key] = storage.nbytes()
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._free, key)
        return result

    def _free(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)
