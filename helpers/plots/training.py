"""What gradients say about training: prices of batch sizes, curvature matrices, rankings."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from helpers.plots.figures import SIGNED, finish


def prices(
    batches: Sequence[int],
    steps: Mapping[str, Sequence[float]],
    fits: Mapping[str, tuple[float, float]],
) -> Figure:
    """Draw what each batch size costs, in steps and in samples, with fitted curves.

    Args:
        batches: N batch sizes, rising.
        steps: `{name: N steps}` to the same end, by the name of the end; infinite where it was
            not reached.
        fits: `{name: (fewest steps, critical batch)}`.
    """
    figure, axis = plt.subplots(figsize=(5.5, 4), layout="constrained")
    sizes = np.array(batches)
    for index, (name, own) in enumerate(steps.items()):
        color, own = f"C{index}", np.array(own)
        own[np.isinf(own)] = np.nan  # an end that was not reached has no place
        axis.plot(own, own * sizes, "o", color=color, markersize=5, label=name)
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
    return finish(figure, legend=2)


def matrices(rows: Mapping[str, Mapping[str, Tensor]], blocks: Mapping[str, int]) -> Figure:
    """Draw matrices over parameters, each row of pictures with colours of its own.

    Args:
        rows: `{row: {column: (P, P)}}`, the same columns in each row.
        blocks: `{name: how many of the P belong to it}`, in order.
    """
    columns = list(next(iter(rows.values())))
    size = (2.3 * len(columns) + 0.7, 2.3 * len(rows) + 0.3)
    figure = plt.figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    ends = np.cumsum(list(blocks.values()))
    middles = ends - np.array(list(blocks.values())) / 2 - 0.5
    for axis, name in zip(axes[0], columns, strict=True):
        axis.set_title(name, fontsize=10)
    for row, (title, own) in zip(axes, rows.items(), strict=True):
        # A few entries are far larger than all others: what is above the limit has its colour.
        limit = torch.quantile(torch.cat([m.abs().flatten() for m in own.values()]), 0.99).item()
        for axis, name in zip(row, columns, strict=True):
            mappable = axis.imshow(own[name].cpu(), cmap=SIGNED, vmin=-limit, vmax=limit)
            for end in ends[:-1]:
                axis.axhline(end - 0.5, color="black", linewidth=0.3)
                axis.axvline(end - 0.5, color="black", linewidth=0.3)
            axis.set(xticks=[], yticks=[])
        row[0].set_yticks(middles, list(blocks), fontsize=7)
        row[0].set_ylabel(title, fontsize=10)
        figure.colorbar(mappable, ax=row, shrink=0.8)
    return finish(figure)


def rankings(panels: Mapping[str, tuple[Tensor, Mapping[str, Tensor]]]) -> Figure:
    """Draw how well scores find samples: the share found against the share of false alarms.

    Args:
        panels: `{title: (which to find, {name: scores})}`, boolean and floating point, `(N,)`;
            a high score means that a sample is to be found.
    """
    figure = plt.figure(figsize=(3.1 * len(panels), 3.5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    names = dict.fromkeys(name for _, scores in panels.values() for name in scores)
    colors = {name: f"C{index}" for index, name in enumerate(names)}  # one meaning in all panels
    for axis, (title, (wanted, scores)) in zip(axes[0], panels.items(), strict=True):
        for name, own in scores.items():
            hits = wanted.cpu()[own.cpu().argsort(descending=True)].double()
            found, false = hits.cumsum(0) / hits.sum(), (1 - hits).cumsum(0) / (1 - hits).sum()
            axis.step(
                torch.cat([false.new_zeros(1), false]),
                [0, *found.tolist()],
                color=colors[name],
                label=name,
            )
        axis.axline((0, 0), slope=1, color="gray", linestyle="--", linewidth=0.8)
        axis.set(xlabel="share of the others above", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axis.set_title(title, fontsize=10)
        axis.legend(fontsize=8, loc="lower right")
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("share found")
    return finish(figure)
