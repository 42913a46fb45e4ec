"""Pictures of samples, and of gradients that have the shape of images."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from helpers.plots.figures import SIGNED, draw_image, finish

IN_A_ROW = 5
"""Digits in one row of a picture: more of them would be too small to read on a phone."""


def digits(images: Tensor, titles: Sequence[object]) -> Figure:
    """Draw images `(N, 1, 28, 28)`, five in a row, each under its title."""
    columns = min(IN_A_ROW, len(images))
    rows = -(-len(images) // columns)
    figure = plt.figure(figsize=(1.1 * columns, 1.45 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(images) :]:
        axis.axis("off")
    for axis, image, title in zip(axes.flat, images, titles, strict=False):
        draw_image(axis, image[0])
        axis.set_title(str(title), fontsize=10)
    return finish(figure)


def kernel_gradients(images: Tensor, gradients: Tensor, labels: Tensor) -> Figure:
    """Draw digits beside the gradients of a first convolution's kernels, one digit a row.

    Args:
        images: `(N, 1, 28, 28)`.
        gradients: `(N, channels, 1, height, width)`, one gradient for each image, with a multiple
            of 4 channels.
        labels: `(N,)`.
    """
    count, channels, _, height, width = gradients.shape
    # A frame of NaN around each kernel keeps them apart.
    tiles = torch.nn.functional.pad(gradients[:, :, 0].cpu(), (0, 1, 0, 1), value=torch.nan)
    tiles = tiles.reshape(count, 4, channels // 4, height + 1, width + 1).transpose(2, 3)
    mosaics = tiles.reshape(count, 4 * (height + 1), -1)[:, :-1, :-1]
    ratio = mosaics.shape[2] / mosaics.shape[1]  # the row is as high as its digit is wide
    figure = plt.figure(figsize=(1.5 * (1 + ratio) + 0.3, 1.56 * count + 0.7), layout="constrained")
    axes = figure.subplots(count, 2, squeeze=False, width_ratios=(1, ratio))
    limit = gradients.abs().max().item()
    for row, image, mosaic, label in zip(axes, images, mosaics, labels.tolist(), strict=True):
        draw_image(row[0], image[0])
        row[0].set_ylabel(f"label {label}", fontsize=10)
        mappable = draw_image(row[1], mosaic, cmap=SIGNED, vmin=-limit, vmax=limit)
    bar = figure.colorbar(mappable, ax=axes[:, 1], location="bottom", aspect=40, pad=0.01)
    bar.set_label("gradient of the loss by one weight", fontsize=10)
    return finish(figure)


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
    return finish(figure)


def attributions(
    targets: Tensor,
    raising: Tensor,
    lowering: Tensor,
    titles: Sequence[str],
    labels: Tensor | None = None,
) -> Figure:
    """Draw digits beside the training digits that most raise and most lower their margins.

    Args:
        targets: `(T, 1, 28, 28)`, one row of the picture for each.
        raising: `(T, N, 1, 28, 28)`, the most raising one first.
        lowering: `(T, N, 1, 28, 28)`, the most lowering one first.
        titles: T titles of the targets.
        labels: `(T, 2 N)`, of the raising and then of the lowering digits, written above each.
    """
    count = raising.shape[1]
    size = (0.85 * (2 * count + 1) + 0.6, 1.15 * len(targets))
    if labels is not None:  # as wide as a phone shows with readable labels
        size = (5.5, 0.85 * len(targets) + 0.4)
    figure = plt.figure(figsize=size, layout=None if labels is None else "constrained")
    widths = [1, 0.4, *[1] * count, 0.4, *[1] * count]  # two empty columns between the groups
    axes = figure.subplots(len(targets), len(widths), squeeze=False, width_ratios=widths)
    for axis in axes.flat:
        axis.axis("off")
    rows = zip(axes, targets, raising, lowering, titles, strict=True)
    for row, target, helping, hurting, title in rows:
        places = [row[0], *row[2 : 2 + count], *row[-count:]]
        for axis, image in zip(places, [target, *helping, *hurting], strict=True):
            axis.axis("on")
            draw_image(axis, image[0])
        row[0].set_title(title, fontsize=8 if labels is None else 9)
    heads = ["raise the margin most", "lower the margin most"]
    middles = [axes[0, 2 + count // 2], axes[0, -1 - count // 2]]
    if labels is None:
        for axis, head in zip(middles, heads, strict=True):
            axis.set_title(head, fontsize=9)
        return finish(figure)
    for row, own in zip(axes, labels.tolist(), strict=True):
        for axis, label in zip([*row[2 : 2 + count], *row[-count:]], own, strict=True):
            axis.set_title(str(label), fontsize=9, pad=2)
    for axis, head in zip(middles, heads, strict=True):
        axis.set_title(f"{head}\n{axis.get_title()}", fontsize=9, pad=2)
    return finish(figure)
