"""Numbers over an axis, against each other, and in groups."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
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
    ticks = _ticks_apart(x)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.margins(y=0.15)
    if level is not None:
        axis.axhline(level, color="gray", linestyle="--")
    return finish(figure, legend=2, **labels)


def effects(groups: dict[str, Tensor], *, digits: int = 1, **labels: str) -> Figure:
    """Draw groups `{name: (T,)}` as rows of points, sorted by their means, each mean as a bar.

    Means are shown with `digits` decimals.
    """
    means = {name: group.mean().item() for name, group in groups.items()}
    names = sorted(means, key=means.__getitem__, reverse=True)
    figure, (axis,) = axes(0.6 * len(groups) + 1.2, grid="x")
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for row, name in enumerate(names):
        values = groups[name].cpu()
        mean = means[name]
        # Two lanes below the row's name, so that equal values do not hide each other.
        lanes = row + 0.12 + 0.12 * (torch.arange(len(values)) % 2)
        axis.scatter(values, lanes, color="gray", s=14, alpha=0.6, linewidths=0)
        axis.vlines(mean, row - 0.18, row + 0.36, color="C0", linewidth=3)
        label = f"{round(mean, digits) + 0:.{digits}f}"  # adding 0 makes 0.0 of -0.0
        axis.text(
            mean,
            row - 0.24,
            label,
            horizontalalignment="center",
            verticalalignment="bottom",
            color="C0",
            bbox=paper,
        )
    axis.axvline(0, color="black", linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.75)  # the first row above
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
    sizes = np.array(batches)
    any_reached = False
    for index, (name, counts) in enumerate(steps.items()):
        color = f"C{index}"
        # Matplotlib skips NaN: a goal that was not reached has no point.
        counts = np.where(np.isinf(counts), np.nan, counts)
        any_reached = any_reached or np.isfinite(counts).any()
        samples = counts * sizes
        marker = "oD^v"[index % 4]
        axis.plot(counts, samples, marker, color=color, markersize=5, label=name)
        if index == len(steps) - 1:  # the uppermost, beside which there is room
            _name_ends(axis, counts, samples, sizes)
        if name in fits:
            fewest_steps, critical_batch = fits[name]
            fine_sizes = np.geomspace(sizes[0] / 1.5, sizes[-1] * 1.5, 200)
            fitted_steps = fewest_steps * (1 + critical_batch / fine_sizes)
            axis.plot(fitted_steps, fitted_steps * fine_sizes, color=color, linewidth=1)
            # With the critical batch, the goal takes twice the fewest steps.
            twice = 2 * fewest_steps
            axis.plot(twice, twice * critical_batch, "s", color=color, mfc="white", ms=9)
    # An empty series, only for the legend.
    axis.plot([], [], "s", color="gray", mfc="white", ms=9, label="critical batch")
    scale = "log" if any_reached else "linear"  # logarithmic axes must not be empty
    axis.set(xscale=scale, yscale=scale)
    return finish(figure, title, legend=2, xlabel="steps S", ylabel="samples E = B S")


def _name_ends(axis: Axes, counts: np.ndarray, samples: np.ndarray, sizes: np.ndarray) -> None:
    """Write the smallest and the largest batch size beside their points."""
    for end, offset, side in ((0, (0, 8), "center"), (-1, (8, 0), "left")):
        if np.isfinite(counts[end]):
            axis.annotate(
                f"B = {sizes[end]}",
                (counts[end], samples[end]),
                offset,  # in points
                textcoords="offset points",
                horizontalalignment=side,
                fontsize=9,
            )


def _ticks_apart(x: Sequence[float]) -> list[float]:
    """Choose, of rising positive numbers, those whose labels do not touch on a logarithmic axis."""
    # A label takes about 7% of the axis.
    factor = (x[-1] / x[0]) ** 0.07
    ticks: list[float] = []
    for value in x:
        if not ticks or value > ticks[-1] * factor:
            ticks.append(value)
    return ticks


def _readable(axis: Axis) -> None:
    """Label a logarithmic axis 1, 2, 5, 10 instead of with powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.axes.minorticks_off()
