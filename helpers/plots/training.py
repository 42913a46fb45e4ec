"""What gradients say about training: prices of batch sizes, curvature matrices, rankings."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from helpers.plots.figures import SIGNED, WIDTH, finish


def prices(
    batches: Sequence[int],
    steps: Mapping[str, Sequence[float]],
    fits: Mapping[str, tuple[float, float]],
    *,
    title: str,
) -> Figure:
    """Draw what each batch size costs, in steps and in samples, with fitted curves.

    Args:
        batches: N batch sizes, rising.
        steps: `{name: N steps}` to the same end, by the name of the end; infinite where it was
            not reached.
        fits: `{name: (fewest steps, critical batch)}`.
        title: What there is to see.
    """
    figure, axis = plt.subplots(figsize=(WIDTH, 4), layout="constrained")
    sizes = np.array(batches)
    for index, (name, own) in enumerate(steps.items()):
        color, own = f"C{index}", np.array(own)
        own[np.isinf(own)] = np.nan  # an end that was not reached has no place
        axis.plot(own, own * sizes, "oD^v"[index % 4], color=color, markersize=5, label=name)
        if index == len(steps) - 1:  # the uppermost, beside which there is room
            for place, shift, side in ((0, (0, -14), "center"), (-1, (8, 0), "left")):
                text, at = f"B = {sizes[place]}", (own[place], own[place] * sizes[place])
                if np.isfinite(at[0]):
                    axis.annotate(text, at, shift, textcoords="offset points", ha=side, fontsize=9)
        if name in fits:
            fewest, critical = fits[name]
            fine = np.geomspace(sizes[0] / 1.5, sizes[-1] * 1.5, 200)
            along = fewest * (1 + critical / fine)
            axis.plot(along, along * fine, color=color, linewidth=1)
            axis.plot(2 * fewest, 2 * fewest * critical, "s", color=color, mfc="white", ms=9)
    axis.plot([], [], "s", color="gray", mfc="white", ms=9, label="critical batch")
    # Logarithmic axes refuse to have nothing on them.
    scale = "log" if any(np.isfinite(own).any() for own in steps.values()) else "linear"
    axis.set(xscale=scale, yscale=scale, xlabel="steps S", ylabel="samples E = B S")
    axis.grid(alpha=0.3)
    return finish(figure, title, legend=2)


def matrices(
    columns: Mapping[str, Mapping[str, Tensor]], blocks: Mapping[str, int], *, title: str
) -> Figure:
    """Draw matrices over parameters, each column of pictures with colours of its own.

    Args:
        columns: `{column: {row: (P, P)}}`, the same rows in each column.
        blocks: `{name: how many of the P belong to it}`, in order.
        title: What there is to see.
    """
    rows = list(next(iter(columns.values())))
    figure = plt.figure(figsize=(WIDTH, 2.2 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False).T
    ends = np.cumsum(list(blocks.values()))
    middles = ends - np.array(list(blocks.values())) / 2 - 0.5
    for axis, name in zip(axes[0], rows, strict=True):
        axis.set_ylabel(name, fontsize=10)
    for column, (name, own) in zip(axes, columns.items(), strict=True):
        column[0].set_title(name, fontsize=10)
        # A few entries are far larger than all others: what is above the limit has its colour.
        limit = torch.quantile(torch.cat([m.abs().flatten() for m in own.values()]), 0.99).item()
        for axis, row in zip(column, rows, strict=True):
            mappable = axis.imshow(own[row].cpu(), cmap=SIGNED, vmin=-limit, vmax=limit)
            for end in ends[:-1]:
                axis.axhline(end - 0.5, color="black", linewidth=0.3)
                axis.axvline(end - 0.5, color="black", linewidth=0.3)
            axis.set(xticks=[], yticks=[])
        options = {"location": "bottom", "shrink": 0.9, "aspect": 30, "label": "entry"}
        figure.colorbar(mappable, ax=column, **options)
    for axis in axes[0]:
        axis.set_yticks(middles, list(blocks), fontsize=9)
    return finish(figure, title)


def rankings(panels: Mapping[str, tuple[Tensor, Mapping[str, Tensor]]], *, title: str) -> Figure:
    """Draw how well scores find samples: the share found against the share of false alarms.

    Args:
        panels: `{title: (which to find, {name: scores})}`, boolean and floating point, `(N,)`;
            a high score means that a sample is to be found.
        title: What there is to see.
    """
    figure = plt.figure(figsize=(WIDTH, 2 * len(panels) + 1.2), layout="constrained")
    axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    names = dict.fromkeys(name for _, scores in panels.values() for name in scores)
    # One meaning in all panels, and where lines lie on each other, the dashes show both.
    styles = {
        name: {"color": f"C{index}", "linestyle": ("-", "--", "-.", ":")[index % 4]}
        for index, name in enumerate(names)
    }
    lines = {}
    for axis, (task, (wanted, scores)) in zip(axes, panels.items(), strict=True):
        for name, own in scores.items():
            hits = wanted.cpu()[own.cpu().argsort(descending=True)].double()
            found, false = hits.cumsum(0) / hits.sum(), (1 - hits).cumsum(0) / (1 - hits).sum()
            along = torch.cat([false.new_zeros(1), false])
            (lines[name],) = axis.step(along, [0, *found.tolist()], **styles[name], linewidth=2)
        axis.axline((0, 0), slope=1, color="gray", linewidth=0.8)
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.06, 1.06), ylabel="share found")
        axis.set_title(task, fontsize=10)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("share of the others ranked above")
    figure.legend(lines.values(), lines, fontsize=9, loc="outside lower center", ncols=3)
    return finish(figure, title)
