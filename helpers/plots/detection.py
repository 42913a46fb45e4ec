"""Detecting one sample: in a release, or in a training run."""

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from helpers.plots.figures import axes, finish


def releases(
    values: Tensor, without: Tensor, with_one: Tensor, *, allowed: float, title: str
) -> Figure:
    """Draw the densities of a release for two neighboring data sets, and the excess over a factor.

    The values that may be released, in ascending order, and the densities without and with a sample
    are `(N,)`. The second density may be up to `allowed`, e to the epsilon, times the first.
    """
    values, without, with_one = values.cpu(), without.cpu(), with_one.cpu()
    figure, (axis,) = axes(3.4, grid="both")
    axis.plot(values, without, label="without the sample")
    axis.plot(values, with_one, label="with the sample")
    bound = allowed * without
    axis.plot(
        values,
        bound,
        color="gray",
        linestyle=":",
        label=f"{allowed:.2f} times without",
    )
    # Delta is the area that lies above the bound.
    axis.fill_between(
        values,
        bound,
        with_one,
        where=with_one > bound,
        color="black",
        label="delta",
    )
    axis.set_ylim(0, 1.1 * bound.max())  # leave some air above the curves
    return finish(figure, title, legend=2, xlabel="what is released", ylabel="density")


def canaries(scores: Mapping[str, tuple[Tensor, Tensor]], **labels: str) -> Figure:
    """Draw the scores of canaries, `{name of the run: (those that were in it, those out)}`."""
    figure, panes = axes(1.5 * len(scores) + 1.1, len(scores), sharex=True)
    groups = []
    for inside, outside in scores.values():
        groups += [inside.cpu(), outside.cpu()]
    all_scores = torch.cat(groups)
    # All panes share 80 bins, so that their bars can be compared.
    bins = torch.linspace(all_scores.min(), all_scores.max(), 81).tolist()
    for axis, name in zip(panes, scores, strict=True):
        inside, outside = scores[name]
        axis.hist(outside.cpu(), bins, color="C5", label="out")
        # As an outline, since it lies on top of the others.
        axis.hist(
            inside.cpu(),
            bins,
            histtype="step",
            color="black",
            linewidth=1.5,
            label="in",
        )
        axis.set_title(name, fontsize=10)
    return finish(figure, legend=2, ylabel="canaries", **labels)
