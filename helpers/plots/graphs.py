"""Numbers over an axis, against each other, and in groups."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor

from helpers.plots.figures import SIGNED, WIDTH, finish


def similarities(matrix: Tensor, labels: Tensor, *, title: str) -> Figure:
    """Draw a matrix of cosine similarities `(B, B)` with its samples ordered by class.

    Args:
        matrix: `(B, B)`, entries from -1 to 1.
        labels: `(B,)`.
        title: What there is to see.
    """
    order = labels.cpu().argsort(stable=True)
    classes, counts = labels.cpu().unique(return_counts=True)
    ends = counts.cumsum(0)
    figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
    ordered = matrix.cpu()[order][:, order]
    mappable = axis.imshow(ordered, cmap=SIGNED, vmin=-1, vmax=1, interpolation="nearest")
    for end in ends[:-1].tolist():
        axis.axhline(end - 0.5, color="black", linewidth=0.4)
        axis.axvline(end - 0.5, color="black", linewidth=0.4)
    middles = (ends - counts / 2 - 0.5).tolist()
    axis.set_xticks(middles, classes.tolist())
    axis.set_yticks(middles, classes.tolist())
    axis.set(xlabel="class of one sample", ylabel="class of the other")
    figure.colorbar(mappable, label="cosine similarity")
    return finish(figure, title)


def curves(
    x: Sequence[float],
    series: dict[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    level: float | None = None,
) -> Figure:
    """Draw several curves over one positive axis, both axes logarithmic.

    Args:
        x: N positive numbers.
        series: `{name: N positive numbers}`.
        xlabel: What `x` is, with its unit.
        ylabel: What the series are, with their unit.
        title: What there is to see; of a measured time, it would be another on another machine.
        level: Where to draw a horizontal line to compare with, if anywhere.
    """
    figure, axis = plt.subplots(figsize=(WIDTH, 3.7), layout="constrained")
    for (name, y), marker in zip(series.items(), "osD^v*PX", strict=False):
        axis.plot(x, y, marker=marker, label=name)
    axis.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    ticks: list[float] = []
    for value in x:
        if not ticks or value > ticks[-1] * (x[-1] / x[0]) ** 0.07:  # or their numbers would touch
            ticks.append(value)
    axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.margins(y=0.15)
    axis.grid(alpha=0.3)
    if level is not None:
        axis.axhline(level, color="gray", linestyle="--")
    return finish(figure, title, legend=2)


def agreement(predicted: Tensor, exact: Tensor, *, xlabel: str, ylabel: str, title: str) -> Figure:
    """Draw by how much predictions are missed, against the predictions: at zero they are right.

    Args:
        predicted: `(N,)`.
        exact: `(N,)`.
        xlabel: What `predicted` is, with its unit.
        ylabel: What exact minus predicted is, in the same unit.
        title: What there is to see.
    """
    figure, axis = plt.subplots(figsize=(WIDTH, 3.4), layout="constrained")
    axis.axhline(0, color="gray", linewidth=0.8)
    axis.scatter(predicted.cpu(), (exact - predicted).cpu(), s=10, alpha=0.5, linewidths=0)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.grid(alpha=0.3)
    return finish(figure, title)


def effects(groups: dict[str, Tensor], *, xlabel: str, title: str, digits: int = 1) -> Figure:
    """Draw groups of numbers as rows of points, sorted by their means, each mean as a bar.

    Args:
        groups: `{name: (T,)}`.
        xlabel: What the numbers are, with their unit.
        title: What there is to see.
        digits: Of each mean, behind the point.
    """
    ordered = sorted(groups.items(), key=lambda item: item[1].mean().item(), reverse=True)
    figure, axis = plt.subplots(figsize=(WIDTH, 0.6 * len(groups) + 1.2), layout="constrained")
    for row, (_, group) in enumerate(ordered):
        values, mean = group.cpu(), group.mean().item()
        # Two lanes below the row's name, so that equal values do not hide each other.
        lanes = row + 0.12 + 0.12 * (torch.arange(len(values)) % 2)
        axis.scatter(values, lanes, color="gray", s=14, alpha=0.6, linewidths=0)
        axis.vlines(mean, row - 0.18, row + 0.36, color="C0", linewidth=3)
        axis.annotate(
            f"{round(mean, digits) + 0:.{digits}f}",  # no "-0.0"
            (mean, row - 0.24),
            ha="center",
            va="bottom",
            color="C0",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    axis.axvline(0, color="black", linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axis.set(xlabel=xlabel, ylim=(len(ordered) - 0.4, -0.75))
    axis.grid(axis="x", alpha=0.3)
    return finish(figure, title)


def shares(values: Mapping[str, float], *, xlabel: str, title: str) -> Figure:
    """Draw shares as bars, each with its percentage.

    Args:
        values: `{name: share}`, 1 for all of it.
        xlabel: What they are shares of.
        title: What there is to see.
    """
    figure, axis = plt.subplots(figsize=(WIDTH, 0.34 * len(values) + 1), layout="constrained")
    bars = axis.barh(list(values), [100 * share for share in values.values()])
    axis.bar_label(bars, fmt="%.0f %%", fontsize=9, padding=3)
    axis.invert_yaxis()
    axis.set(xlabel=f"{xlabel} (%)")
    axis.margins(x=0.2)
    axis.set_xticks(range(0, 101, 25))
    axis.grid(axis="x", alpha=0.3)
    return finish(figure, title)
