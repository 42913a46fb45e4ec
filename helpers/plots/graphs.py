"""Numbers over an axis, against each other, and in groups."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor

from helpers.plots.figures import axes, finish

MARKERS = "osD^v*PX"


def curves(
    x: Sequence[float],
    series: dict[str, Sequence[float]],
    *,
    level: float | None = None,
    **labels: str,
) -> Figure:
    """Draw several curves over N positive numbers, both axes logarithmic.

    Series are `{name: N positive numbers}`; `level` is the height of a reference line.
    """
    figure, (axis,) = axes(3.7, grid="both")
    for (name, y), marker in zip(series.items(), MARKERS, strict=False):
        axis.plot(x, y, marker=marker, label=name)
    axis.set(xscale="log", yscale="log")
    _readable(axis.yaxis)
    ticks: list[float] = []
    for value in x:
        if not ticks or value > ticks[-1] * (x[-1] / x[0]) ** 0.07:  # or their numbers would touch
            ticks.append(value)
    axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axis.margins(y=0.15)
    if level is not None:
        axis.axhline(level, color="gray", linestyle="--")
    return finish(figure, legend=2, **labels)


def effects(groups: dict[str, Tensor], *, digits: int = 1, **labels: str) -> Figure:
    """Draw groups `{name: (T,)}` as rows of points, sorted by their means, each mean as a bar.

    Means are shown with `digits` decimals.
    """
    ordered = sorted(groups.items(), key=lambda item: item[1].mean().item(), reverse=True)
    figure, (axis,) = axes(0.6 * len(groups) + 1.2, grid="x")
    for row, (_, group) in enumerate(ordered):
        values, mean = group.cpu(), group.mean().item()
        # Two lanes below the row's name, so that equal values do not hide each other.
        lanes = row + 0.12 + 0.12 * (torch.arange(len(values)) % 2)
        axis.scatter(values, lanes, color="gray", s=14, alpha=0.6, linewidths=0)
        axis.vlines(mean, row - 0.18, row + 0.36, color="C0", linewidth=3)
        label = f"{round(mean, digits) + 0:.{digits}f}"  # no "-0.0"
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axis.text(mean, row - 0.24, label, ha="center", va="bottom", color="C0", bbox=paper)
    axis.axvline(0, color="black", linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axis.set_ylim(len(ordered) - 0.4, -0.75)
    return finish(figure, **labels)


def prices(
    batches: Sequence[int],
    steps: Mapping[str, Sequence[float]],
    fits: Mapping[str, tuple[float, float]],
    *,
    title: str,
) -> Figure:
    """Draw what each of N rising batch sizes costs, in steps and in samples, with fitted curves.

    Steps are `{name of a goal: N steps to it}`, infinite if it was not reached, and fits
    `{name: (fewest steps, critical batch)}`.
    """
    figure, (axis,) = axes(4, grid="both")
    sizes, any_reached = np.array(batches), False
    for index, (name, counts) in enumerate(steps.items()):
        # A goal that was not reached is skipped.
        color, counts = f"C{index}", np.where(np.isinf(counts), np.nan, counts)
        any_reached |= np.isfinite(counts).any()
        axis.plot(counts, counts * sizes, "oD^v"[index % 4], color=color, markersize=5, label=name)
        if index == len(steps) - 1:  # the uppermost, beside which there is room
            for end, shift, side in ((0, (0, 8), "center"), (-1, (8, 0), "left")):
                text, at = f"B = {sizes[end]}", (counts[end], counts[end] * sizes[end])
                if np.isfinite(at[0]):
                    axis.annotate(text, at, shift, textcoords="offset points", ha=side, fontsize=9)
        if name in fits:
            fewest, critical = fits[name]
            fine = np.geomspace(sizes[0] / 1.5, sizes[-1] * 1.5, 200)
            along = fewest * (1 + critical / fine)
            axis.plot(along, along * fine, color=color, linewidth=1)
            axis.plot(2 * fewest, 2 * fewest * critical, "s", color=color, mfc="white", ms=9)
    axis.plot([], [], "s", color="gray", mfc="white", ms=9, label="critical batch")
    scale = "log" if any_reached else "linear"  # logarithmic axes must not be empty
    axis.set(xscale=scale, yscale=scale)
    return finish(figure, title, legend=2, xlabel="steps S", ylabel="samples E = B S")


def _readable(axis: Axis) -> None:
    """Label a logarithmic axis 1, 2, 5, 10 instead of with powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.axes.minorticks_off()
