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
    values, without, with_one = (tensor.cpu() for tensor in (values, without, with_one))
    figure, (axis,) = axes(3.4, grid="both")
    axis.plot(values, without, label="without the sample")
    axis.plot(values, with_one, label="with the sample")
    bound = allowed * without
    axis.plot(values, bound, color="gray", linestyle=":", label=f"{allowed:.2f} times without")
    above = with_one > bound
    axis.fill_between(values, bound, with_one, where=above, color="black", label="delta")
    axis.set_ylim(0, 1.25 * with_one.max())
    return finish(figure, title, legend=2, xlabel="what is released", ylabel="density")


def canaries(scores: Mapping[str, tuple[Tensor, Tensor]], **labels: str) -> Figure:
    """Draw the scores of canaries, `{name of the run: (those that were in it, those out)}`."""
    figure, panes = axes(1.5 * len(scores) + 1.1, len(scores), sharex=True)
    all_scores = torch.cat([group for pair in scores.values() for group in pair]).cpu()
    bins = torch.linspace(all_scores.min(), all_scores.max(), 81).tolist()  # the same in all
    for axis, (name, (inside, outside)) in zip(panes, scores.items(), strict=True):
        axis.hist(outside.cpu(), bins, color="C5", label="out")
        axis.hist(inside.cpu(), bins, histtype="step", color="black", linewidth=1.5, label="in")
        axis.set_title(name, fontsize=10)
    return finish(figure, legend=2, ylabel="canaries", **labels)
