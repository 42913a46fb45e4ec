"""The pictures of measurements: multiples of a reference, side by side for several machines."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

REFERENCE = "batch gradient"
Study = Mapping[str, Any]
"""What `helpers.study` measured."""
DISTURBED = 0.3
"""The spread, as a share of the median, from which a bar says it."""


def multiples(studies: Mapping[str, Study], *, reference: str = REFERENCE) -> Figure:
    """Draw how many times the reference each candidate takes, a bar for each run.

    A spread that is a large part of its median stands beside the bar.

    Args:
        studies: `{name of the run: study}` of the same candidates, more or fewer of them.
        reference: The name of the candidate that is 1.

    Raises:
        ValueError: A run has not measured the reference.
    """
    for run, study in studies.items():
        if reference not in study["candidates"]:
            raise ValueError(f"{run} has no {reference!r}, of which the others are multiples")
    names = list(dict.fromkeys(name for study in studies.values() for name in study["candidates"]))
    figure, axis = plt.subplots(figsize=(8, 0.36 * len(names) + 1.2), layout="constrained")
    height = 0.8 / len(studies)
    for number, (run, study) in enumerate(studies.items()):
        measured = study["candidates"]
        unit = measured[reference]["median"]
        places = [place + (number + 0.5) * height - 0.4 for place in range(len(names))]
        there = [
            (place, measured[n]) for place, n in zip(places, names, strict=True) if n in measured
        ]
        times = [row["median"] / unit for _, row in there]
        # A logarithmic axis has no zero to begin at: each bar is the distance to the reference.
        lengths = [time - 1 for time in times]
        bars = axis.barh([place for place, _ in there], lengths, height, left=1, label=run)
        spreads = [(row["iqr"] or 0) / unit for _, row in there]
        labels = [
            f"{time:.3g}" + (f" (spread {spread:.2g})" if spread > DISTURBED * time else "")
            for time, spread in zip(times, spreads, strict=True)
        ]
        axis.bar_label(bars, labels, fontsize=7, padding=2)
    axis.axvline(1, color="black", linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel=f"time, as a multiple of the {reference} (logarithmic)")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.margins(x=0.12)
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize=8, loc="lower right")
    plt.close(figure)
    return figure


def growth(studies: Sequence[Study]) -> Figure:
    """Draw the time of each sample over the batch size, a curve for each candidate.

    Args:
        studies: One for each batch size.
    """
    figure, axis = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
    for name, marker in zip(studies[0]["candidates"], "osD^v*PX", strict=False):
        points = [
            (study["task"]["batch_size"], study["candidates"][name]["median"])
            for study in studies
            if name in study["candidates"]
        ]
        sizes = [size for size, _ in points]
        axis.plot(sizes, [1e3 * t / size for size, t in points], marker=marker, label=name)
    sizes = [study["task"]["batch_size"] for study in studies]
    axis.set(
        xscale="log", yscale="log", xlabel="batch size B", ylabel="ms for each sample (logarithmic)"
    )
    axis.set_xticks(sizes, sizes)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.margins(y=0.15)
    axis.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside upper center", ncols=2)
    plt.close(figure)
    return figure
