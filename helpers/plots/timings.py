"""The picture of measured times: multiples of a reference, side by side for several runs."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from helpers.plots.figures import finish


def multiples(runs: Mapping[str, Mapping[str, tuple[float, float]]], *, reference: str) -> Figure:
    """Draw how many times the reference each method takes, a bar for each run, the fastest on top.

    Methods are sorted by the last run that has them. A spread that is a large part of its median
    stands beside the bar.

    Args:
        runs: `{name of the run: {method: (median, spread)}}`, of more or fewer of the same methods.
        reference: The method that is 1.
    """
    times: dict[str, dict[str, float]] = {}
    for run, measured in runs.items():
        unit = measured[reference][0]
        times[run] = {method: median / unit for method, (median, _) in measured.items()}
    latest = {method: time for each in times.values() for method, time in each.items()}
    methods = sorted(latest, key=latest.get)
    figure, axis = plt.subplots(figsize=(7, 0.38 * len(methods) + 1.4), layout="constrained")
    height = 0.8 / len(runs)
    for number, (run, measured) in enumerate(runs.items()):
        there = [(place, method) for place, method in enumerate(methods) if method in measured]
        centres = [place + (number + 0.5) * height - 0.4 for place, _ in there]
        # A logarithmic axis has no zero to begin at: each bar is the distance to the reference.
        lengths = [times[run][method] - 1 for _, method in there]
        axis.barh(centres, lengths, height, left=1, label=run)
        labels = [_label(times[run][method], *measured[method]) for _, method in there]
        # To the right of either end: to the left of a short bar, a label would lie on the names.
        for centre, length, label in zip(centres, lengths, labels, strict=True):
            place = (1 + max(length, 0), centre)
            axis.annotate(label, place, (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.axvline(1, color="black", linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(methods)), methods, fontsize=9)
    axis.set_ylim(len(methods) - 0.4, -0.6)
    axis.set(xscale="log", xlabel=f"time, as a multiple of the {reference} (logarithmic)")
    every = [time for each in times.values() for time in each.values()]
    longest = max(len(text.get_text()) for text in axis.texts)
    left, share = min(every) / 1.15, 0.04 + 0.02 * longest  # of the width, for the labels
    axis.set_xlim(left, max(every) * (max(every) / left) ** (share / (1 - share)))
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.grid(axis="x", alpha=0.3)
    return finish(figure, legend=2)


def _label(time: float, median: float, spread: float) -> str:
    said = f" (spread {spread / median * time:.2g})" if spread > 0.3 * median else ""
    return f"{time:.3g}{said}"
