"""What the slow entries cost on this machine."""

import functools
import warnings

import pandas as pd
from torch import Tensor

from helpers.benchmark import measure
from helpers.limits.entries.slow import ENTRIES
from helpers.limits.entry import run


def ratios(images: Tensor, labels: Tensor, *, rounds: int = 3) -> pd.DataFrame:
    """Time both sides of each slow entry, in rounds.

    Args:
        images: `(B, 1, 28, 28)`.
        labels: `(B,)`.
        rounds: How often each side is timed.

    Returns:
        A row for each entry: both medians in milliseconds, and how many times as long the broken
        side takes.
    """
    rows = {}
    for entry in ENTRIES:
        sides = {"as it is": entry.broken, "the way out": entry.fixed}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            candidates = {
                side: functools.partial(run, function, images, labels)
                for side, function in sides.items()
            }
            times = measure(candidates, rounds=rounds, min_run_time=0.02)
        slow, fixed = (times[side].median * 1e3 for side in sides)
        rows[entry.name] = {
            "as it is (ms)": round(slow, 1),
            "the way out (ms)": round(fixed, 1),
            "times as long": round(slow / fixed, 1),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("entry")
