"""Pictures of private training: what a release gives away, what noise costs, what an audit sees."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from helpers.plots.figures import WIDTH, finish


def releases(
    values: Tensor, without: Tensor, with_one: Tensor, *, allowed: float, title: str
) -> Figure:
    """Draw the densities of a release for two neighbouring data sets, and what exceeds a factor.

    Args:
        values: What may be released, `(N,)`, in ascending order.
        without: The density without the sample, `(N,)`.
        with_one: The density with it, `(N,)`.
        allowed: The factor, e to the epsilon, by which the second may be larger than the first.
        title: What there is to see.
    """
    values, without, with_one = (tensor.cpu() for tensor in (values, without, with_one))
    figure, axis = plt.subplots(figsize=(WIDTH, 3.4), layout="constrained")
    axis.plot(values, without, label="without the sample")
    axis.plot(values, with_one, label="with the sample")
    bound = allowed * without
    axis.plot(values, bound, color="gray", linestyle=":", label=f"{allowed:.2f} times the first")
    above = with_one > bound
    axis.fill_between(values, bound, with_one, where=above, color="black", label="delta")
    axis.set(xlabel="what is released", ylabel="density", ylim=(0, 1.25 * with_one.max()))
    axis.grid(alpha=0.3)
    return finish(figure, title, legend=2)


def batches(
    sums: Mapping[str, Tensor], released: Mapping[str, Tensor], yours: int, *, title: str
) -> Figure:
    """Draw the sums of an epoch's batches as bars, and what is released of them as points.

    Args:
        sums: `{name: (T,)}`, one row of the picture for each, in units of the limit.
        released: The same with noise.
        yours: The number of the batch that is marked.
        title: What there is to see.
    """
    figure = plt.figure(figsize=(WIDTH, 1.7 * len(sums) + 0.9), layout="constrained")
    axes = figure.subplots(len(sums), sharex=True, sharey=True, squeeze=False)
    floor = min(each.min().item() for each in released.values()) - 0.5
    for axis, (name, heights) in zip(axes.flat, sums.items(), strict=True):
        colours = ["lightgray"] * len(heights)
        colours[yours] = "C4"
        axis.bar(range(len(heights)), heights.cpu() - floor, bottom=floor, width=1, color=colours)
        axis.scatter(range(len(heights)), released[name].cpu(), color="black", s=6)
        axis.set_title(f"{name} (the coloured batch)", fontsize=10)
        axis.set_ylabel("limits above\nthe others")
        axis.margins(x=0.01)
    axes.flat[-1].set_xlabel("step of the epoch (bars: sums; points: with noise)")
    return finish(figure, title)


def spreads(
    places: Sequence[str],
    series: Mapping[str, Tensor],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    baselines: Mapping[str, float] | None = None,
) -> Figure:
    """Draw several runs for each place of an axis: a point for each run, a line through the means.

    Args:
        places: K names of what is varied, in order.
        series: `{name: (K, R)}`, R runs at each place.
        xlabel: What is varied.
        ylabel: What the numbers are, with their unit.
        title: What there is to see.
        baselines: `{name of a series: its level}`, drawn as a dashed line in the same colour.
    """
    figure, axis = plt.subplots(figsize=(WIDTH, 3.7), layout="constrained")
    for number, ((name, runs), marker) in enumerate(zip(series.items(), "osD^v", strict=False)):
        colour, at = f"C{number}", range(len(places))
        axis.plot(at, runs.mean(dim=1).cpu(), color=colour, marker=marker, label=name)
        for each in runs.cpu().unbind(dim=1):
            axis.plot(at, each, marker, color=colour, markersize=4, alpha=0.5, markeredgewidth=0)
        if baselines and name in baselines:
            axis.axhline(baselines[name], color=colour, linestyle="--", linewidth=0.9)
    axis.set_xticks(range(len(places)), places)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.grid(alpha=0.3)
    return finish(figure, title, legend=min(len(series), 3))


def canaries(scores: Mapping[str, tuple[Tensor, Tensor]], *, xlabel: str, title: str) -> Figure:
    """Draw the scores of canaries that were in a training and of those that were not.

    Args:
        scores: `{name of the training: (scores of those in, scores of those out)}`.
        xlabel: What the scores are, with their unit.
        title: What there is to see.
    """
    figure = plt.figure(figsize=(WIDTH, 1.5 * len(scores) + 1.1), layout="constrained")
    axes = figure.subplots(len(scores), squeeze=False, sharex=True)
    every = torch.cat([each for pair in scores.values() for each in pair]).cpu()
    bins = torch.linspace(every.min(), every.max(), 81).tolist()  # the same in all
    for axis, (name, (inside, outside)) in zip(axes.flat, scores.items(), strict=True):
        axis.hist(outside.cpu(), bins, color="C5", label="out")
        axis.hist(inside.cpu(), bins, histtype="step", color="black", linewidth=1.5, label="in")
        axis.set_title(name, fontsize=10)
        axis.set_ylabel("canaries")
    axes.flat[-1].set_xlabel(xlabel)
    return finish(figure, title, legend=2)
