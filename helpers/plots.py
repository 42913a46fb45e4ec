"""The pictures of the lessons: each function takes tensors and returns a matplotlib figure."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import LogLocator
from torch import Tensor

SIGNED = plt.get_cmap("RdBu_r").copy()  # blue below zero, white at zero, red above
SIGNED.set_bad("lightgray")  # what holds no number


def digits(images: Tensor, titles: Sequence[object]) -> Figure:
    """Draw images `(N, 1, 28, 28)` in one row, each under its title."""
    figure, axes = plt.subplots(
        1, len(images), figsize=(1.1 * len(images), 1.5), squeeze=False, layout="constrained"
    )
    for axis, image, title in zip(axes[0], images, titles, strict=True):
        _image(axis, image[0])
        axis.set_title(str(title), fontsize=9)
    return _finish(figure)


def kernel_gradients(images: Tensor, gradients: Tensor, labels: Tensor) -> Figure:
    """Draw digits above the gradients of a first convolution's kernels.

    Args:
        images: `(N, 1, 28, 28)`.
        gradients: `(N, channels, 1, height, width)`, one gradient for each image, with a multiple
            of 4 channels.
        labels: `(N,)`.
    """
    count, channels, _, height, width = gradients.shape
    figure, axes = plt.subplots(
        2, count, figsize=(2.2 * count, 3.6), squeeze=False, layout="constrained"
    )
    limit = gradients.abs().max().item()
    for column in range(count):
        _image(axes[0, column], images[column, 0])
        axes[0, column].set_title(f"label {labels[column].item()}", fontsize=9)
        # A frame of NaN around each kernel keeps them apart.
        tiles = gradients[column, :, 0].cpu()
        tiles = torch.nn.functional.pad(tiles, (0, 1, 0, 1), value=torch.nan)
        tiles = tiles.reshape(4, channels // 4, height + 1, width + 1)
        mosaic = tiles.transpose(1, 2).reshape(4 * (height + 1), -1)[:-1, :-1]
        mappable = _image(axes[1, column], mosaic, cmap=SIGNED, vmin=-limit, vmax=limit)
    figure.colorbar(mappable, ax=axes[1, :], label="gradient")
    return _finish(figure)


def norms(before: Tensor, after: Tensor, images: Tensor, labels: Tensor, shown: int = 5) -> Figure:
    """Draw how gradient norms are distributed, and the digits at the two ends.

    Args:
        before: `(M,)`, norms before training, positive; samples may be fewer.
        after: `(N,)`, norms after training, positive, one for each image.
        images: `(N, 1, 28, 28)`.
        labels: `(N,)`.
        shown: How many digits to draw for each end.
    """
    before, after, shown = before.cpu(), after.cpu(), min(shown, len(after))
    figure = plt.figure(figsize=(10, 3.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.1))
    axis = left.subplots()
    both = torch.cat([before, after])
    bins = np.geomspace(both.min().item() * 0.99, both.max().item() * 1.01, 30)
    for values, name in ((after, "after training"), (before, "before training")):
        share = torch.full_like(values, 1 / len(values))
        axis.hist(values.numpy(), bins=bins, weights=share.numpy(), alpha=0.7, label=name)
    axis.set(xscale="log", xlabel="norm of a sample's gradient", ylabel="share of the samples")
    axis.legend()
    order = after.argsort()
    axes = right.subplots(2, shown, squeeze=False)
    for row, (indices, word) in enumerate(
        [(order[:shown], "smallest"), (order[-shown:].flip(0), "largest")]
    ):
        for axis, index in zip(axes[row], indices.tolist(), strict=True):
            _image(axis, images[index, 0])
            axis.set_title(f"{labels[index].item()}: {after[index]:.3g}", fontsize=9)
        axes[row, 0].set_ylabel(word)
    return _finish(figure)


def similarities(matrix: Tensor, labels: Tensor) -> Figure:
    """Draw a matrix of cosine similarities `(B, B)` with its samples ordered by class.

    Args:
        matrix: `(B, B)`, entries from -1 to 1.
        labels: `(B,)`.
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
    return _finish(figure)


def curves(
    x: Sequence[float],
    series: dict[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    level: float | None = None,
) -> Figure:
    """Draw several curves over one positive axis, both axes logarithmic.

    Args:
        x: N positive numbers.
        series: `{name: N positive numbers}`.
        xlabel: What `x` is, with its unit.
        ylabel: What the series are, with their unit.
        level: Where to draw a horizontal line to compare with, if anywhere.
    """
    figure, axis = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
    for (name, y), marker in zip(series.items(), "osD^v*PX", strict=False):
        axis.plot(x, y, marker=marker, label=name)
    axis.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    axis.set_xticks(x, [f"{value:g}" for value in x])
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    if level is not None:
        axis.axhline(level, color="gray", linestyle="--")
    axis.legend()
    return _finish(figure)


def in_dims(arguments: dict[str, tuple[str, int | None]], function: str) -> Figure:
    """Draw what `vmap` hands to each call: a slice of an argument, or the whole of it.

    Args:
        arguments: `{name: (what it is, in_dim)}`; `in_dim` is 0 for a batch, `None` for what all
            calls share.
        function: The name of the function that is mapped.
    """
    slices = ["0", "1", "...", "B-1"]
    colors = ["tab:blue", "tab:orange", "white", "tab:green"]
    width = 4.6 * len(arguments) - 0.6  # an argument is 4 wide, a gap 0.6
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    calls = np.linspace(1.5, width - 1.5, len(slices))
    for x, index, color in zip(calls, slices, colors, strict=True):
        if index == "...":
            axis.text(x, 0.5, index, ha="center", va="center", fontsize=12)
            continue
        axis.add_patch(Rectangle((x - 1.45, 0), 2.9, 1, fill=False, ec=color, lw=2))
        axis.text(x, 0.5, f"{function}\ncall {index}", ha="center", va="center", fontsize=9)
    for column, (name, (what, dim)) in enumerate(arguments.items()):
        left = 4.6 * column
        axis.text(left + 2, 5.2, name, ha="center", fontsize=11, family="monospace")
        axis.text(left + 2, 4.6, f"{what}, in_dim {dim}", ha="center", fontsize=9)
        if dim is None:
            axis.add_patch(Rectangle((left, 3.5), 4, 0.8, fc="lightgray", ec="gray"))
        for number, (index, color) in enumerate(zip(slices, colors, strict=True)):
            middle = left + 2 if dim is None else left + number + 0.5
            if dim is not None:
                axis.add_patch(
                    Rectangle((left + number, 3.5), 1, 0.8, fc=color, ec="gray", alpha=0.6)
                )
                axis.text(middle, 3.9, index, ha="center", va="center", fontsize=9)
            if index != "...":
                arrow = FancyArrowPatch(
                    (middle, 3.5), (calls[number], 1.02), arrowstyle="->", mutation_scale=10
                )
                arrow.set_color("gray" if dim is None else color)
                axis.add_patch(arrow)
    axis.set(xlim=(-0.2, width + 0.2), ylim=(-0.1, 5.7))
    axis.axis("off")
    return _finish(figure)


def weight_jacobian(jacobian: Tensor) -> Figure:
    """Draw the Jacobian of one sample by a first layer's weights.

    Args:
        jacobian: `(Y, hidden, 784)`: for each output a row of images, one for each hidden unit,
            red where more of the weight raises that output, blue where it lowers it.
    """
    outputs, hidden, _ = jacobian.shape
    tiles = jacobian.cpu().reshape(outputs, hidden, 28, 28)
    mosaic = tiles.transpose(1, 2).reshape(outputs * 28, hidden * 28)
    limit = mosaic.abs().max().item()
    figure, axis = plt.subplots(figsize=(9, 9 * outputs / hidden + 0.6), layout="constrained")
    mappable = axis.imshow(mosaic, cmap=SIGNED, vmin=-limit, vmax=limit)
    for edge in range(1, outputs):
        axis.axhline(28 * edge - 0.5, color="lightgray", linewidth=0.5)
    for edge in range(1, hidden):
        axis.axvline(28 * edge - 0.5, color="lightgray", linewidth=0.5)
    axis.set_xticks([28 * unit + 13.5 for unit in range(hidden)], range(hidden))
    axis.set_yticks([28 * output + 13.5 for output in range(outputs)], range(outputs))
    axis.set(xlabel="hidden unit, whose 784 weights make one tile", ylabel="output")
    figure.colorbar(mappable, label="derivative", shrink=0.8)
    return _finish(figure)


def attributions(
    targets: Tensor, raising: Tensor, lowering: Tensor, titles: Sequence[str]
) -> Figure:
    """Draw digits beside the training digits that most raise and most lower their margins.

    Args:
        targets: `(T, 1, 28, 28)`, one row of the picture for each.
        raising: `(T, N, 1, 28, 28)`, the most raising one first.
        lowering: `(T, N, 1, 28, 28)`, the most lowering one first.
        titles: T titles of the targets.
    """
    count = raising.shape[1]
    figure = plt.figure(figsize=(0.85 * (2 * count + 1) + 0.6, 1.15 * len(targets)))
    widths = [1, 0.4, *[1] * count, 0.4, *[1] * count]  # two empty columns between the groups
    axes = figure.subplots(
        len(targets), len(widths), squeeze=False, gridspec_kw={"width_ratios": widths}
    )
    for axis in axes.flat:
        axis.axis("off")
    for row, target, helping, hurting, title in zip(
        axes, targets, raising, lowering, titles, strict=True
    ):
        for axis, image in zip(
            [row[0], *row[2 : 2 + count], *row[-count:]], [target, *helping, *hurting], strict=True
        ):
            axis.axis("on")
            _image(axis, image[0])
        row[0].set_title(title, fontsize=8)
    axes[0, 2 + count // 2].set_title("raise the margin most", fontsize=9)
    axes[0, -1 - count // 2].set_title("lower the margin most", fontsize=9)
    return _finish(figure)


def agreement(predicted: Tensor, exact: Tensor, *, xlabel: str, ylabel: str) -> Figure:
    """Draw predictions against what they predict; on the diagonal they are right.

    Args:
        predicted: `(N,)`.
        exact: `(N,)`.
        xlabel: What `predicted` is, with its unit.
        ylabel: What `exact` is, with its unit.
    """
    figure, axis = plt.subplots(figsize=(4.2, 4), layout="constrained")
    axis.axline((0, 0), slope=1, color="gray", linewidth=0.8)
    axis.scatter(predicted.cpu(), exact.cpu(), s=5, alpha=0.4)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.grid(alpha=0.3)
    return _finish(figure)


def effects(groups: dict[str, Tensor], *, ylabel: str) -> Figure:
    """Draw groups of numbers as points, with a bar at the mean of each group.

    Args:
        groups: `{name: (T,)}`; the same T things in every group, joined by lines.
        ylabel: What the numbers are, with their unit.
    """
    figure, axis = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
    values = torch.stack([group.cpu() for group in groups.values()])
    axis.plot(values, color="gray", marker="o", markersize=4, linewidth=0.5, alpha=0.7)
    places = range(len(groups))
    axis.hlines(values.mean(1), [p - 0.2 for p in places], [p + 0.2 for p in places], linewidth=3)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(places, list(groups))
    axis.set(ylabel=ylabel)
    axis.grid(axis="y", alpha=0.3)
    return _finish(figure)


def shares(values: Mapping[str, float], *, xlabel: str) -> Figure:
    """Draw shares as bars, each with its percentage.

    Args:
        values: `{name: share}`, 1 for all of it.
        xlabel: What they are shares of.
    """
    figure, axis = plt.subplots(figsize=(7, 0.34 * len(values) + 0.8), layout="constrained")
    bars = axis.barh(list(values), [100 * share for share in values.values()])
    axis.bar_label(bars, fmt="%.0f %%", fontsize=8, padding=3)
    axis.invert_yaxis()
    axis.set(xlabel=f"{xlabel} (%)")
    axis.margins(x=0.12)
    axis.grid(axis="x", alpha=0.3)
    return _finish(figure)


def _image(axis: plt.Axes, image: Tensor, **options: object) -> object:
    """Draw one `(height, width)` image without ticks, dark ink on light paper unless told."""
    options = options or {"cmap": "gray_r", "vmin": 0, "vmax": 1}
    mappable = axis.imshow(image.cpu(), interpolation="nearest", **options)
    axis.set(xticks=[], yticks=[])
    return mappable


def _finish(figure: Figure) -> Figure:
    """Close the figure: a notebook then shows it once, as its cell's result."""
    plt.close(figure)
    return figure
