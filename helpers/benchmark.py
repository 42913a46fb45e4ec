"""Fair timing: every candidate warmed up, all of them interleaved, medians with their spread."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch.utils.benchmark import Measurement, Timer
from tqdm.auto import tqdm


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
        once = timer.timeit(1).median  # warm-up: the first call allocates, compiles, picks kernels
        once = min(once, timer.timeit(1).median)
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
