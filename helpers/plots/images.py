"""Pictures of samples, and of gradients that have the shape of images."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from helpers.plots.figures import SIGNED, WIDTH, draw_image, finish

IN_A_ROW = 5
"""Digits in one row of a picture: more of them would be too small to read on a phone."""


def digits(images: Tensor, titles: Sequence[object], *, title: str = "") -> Figure:
    """Draw images `(N, 1, 28, 28)`, five in a row, each under its title, all under `title`."""
    columns = min(IN_A_ROW, len(images))
    rows = -(-len(images) // columns)
    size = (WIDTH / IN_A_ROW * columns, 1.4 * rows + (0.3 if title else 0))
    figure = plt.figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(images) :]:
        axis.axis("off")
    for axis, image, own in zip(axes.flat, images, titles, strict=False):
        draw_image(axis, image[0])
        axis.set_title(str(own), fontsize=10)
    return finish(figure, title)


def kernel_gradients(images: Tensor, gradients: Tensor, labels: Tensor, *, title: str) -> Figure:
    """Draw digits beside the gradients of a first convolution's kernels, one digit a row.

    Args:
        images: `(N, 1, 28, 28)`.
        gradients: `(N, channels, 1, height, width)`, one gradient for each image, with a multiple
            of 4 channels.
        labels: `(N,)`.
        title: What there is to see.
    """
    count, channels, _, height, width = gradients.shape
    # A frame of NaN around each kernel keeps them apart.
    tiles = torch.nn.functional.pad(gradients[:, :, 0].cpu(), (0, 1, 0, 1), value=torch.nan)
    tiles = tiles.reshape(count, 4, channels // 4, height + 1, width + 1).transpose(2, 3)
    mosaics = tiles.reshape(count, 4 * (height + 1), -1)[:, :-1, :-1]
    ratio = mosaics.shape[2] / mosaics.shape[1]  # the row is as high as its digit is wide
    figure = plt.figure(figsize=(1.5 * (1 + ratio) + 0.3, 1.56 * count + 1), layout="constrained")
    axes = figure.subplots(count, 2, squeeze=False, width_ratios=(1, ratio))
    limit = gradients.abs().max().item()
    for row, image, mosaic, label in zip(axes, images, mosaics, labels.tolist(), strict=True):
        draw_image(row[0], image[0])
        row[0].set_ylabel(f"label {label}", fontsize=10)
        mappable = draw_image(row[1], mosaic, cmap=SIGNED, vmin=-limit, vmax=limit)
    bar = figure.colorbar(mappable, ax=axes[:, 1], location="bottom", aspect=40, pad=0.01)
    bar.set_label("gradient of the loss by one weight", fontsize=10)
    return finish(figure, title)


def weight_jacobian(jacobian: Tensor, *, title: str) -> Figure:
    """Draw the Jacobian of one sample by a first layer's weights.

    Args:
        jacobian: `(Y, hidden, 784)`: for each output a row of images, one for each hidden unit,
            red where more of the weight raises that output, blue where it lowers it.
        title: What there is to see.
    """
    outputs, hidden, _ = jacobian.shape
    tiles = jacobian.cpu().reshape(outputs, hidden, 28, 28)
    mosaic = tiles.transpose(1, 2).reshape(outputs * 28, hidden * 28)
    limit = mosaic.abs().max().item()
    figure, axis = plt.subplots(
        figsize=(WIDTH, WIDTH * outputs / hidden + 1.5), layout="constrained"
    )
    mappable = axis.imshow(mosaic, cmap=SIGNED, vmin=-limit, vmax=limit)
    for edge in range(1, outputs):
        axis.axhline(28 * edge - 0.5, color="lightgray", linewidth=0.5)
    for edge in range(1, hidden):
        axis.axvline(28 * edge - 0.5, color="lightgray", linewidth=0.5)
    units = range(0, hidden, 2)  # the number of each would touch the next
    axis.set_xticks([28 * unit + 13.5 for unit in units], units)
    axis.set_yticks([28 * output + 13.5 for output in range(outputs)], range(outputs))
    axis.set(xlabel="hidden unit, whose 784 weights make one tile", ylabel="output")
    figure.colorbar(mappable, label="derivative", location="bottom", shrink=0.8, aspect=40)
    return finish(figure, title)


def attributions(
    targets: Tensor,
    names: Sequence[str],
    images: Tensor,
    labels: Tensor,
    order: Tensor,
    *,
    title: str,
) -> Figure:
    """Draw digits beside the training digits that most raise and most lower their margins.

    Args:
        targets: `(T, 1, 28, 28)`, two rows of the picture for each.
        names: T names of the targets.
        images: `(N, 1, 28, 28)`, the training digits.
        labels: `(N,)`, which stand above the digits shown.
        order: `(T, N)`, for each target the training digits, the most raising one first.
        title: What there is to see.
    """
    count = IN_A_ROW
    size = (WIDTH, 2.3 * len(targets) + 0.4)
    figure = plt.figure(figsize=size, layout="constrained")
    axes = figure.subplots(2 * len(targets), count + 1, squeeze=False)
    ends = {"raise": slice(0, count), "lower": slice(-1, -count - 1, -1)}
    for number, (target, name, own) in enumerate(zip(targets, names, order.cpu(), strict=True)):
        for row, (what, end) in zip(axes[2 * number :], ends.items(), strict=False):
            chosen = [int(each) for each in own.tolist()[end]]
            for axis, index in zip(row[1:], chosen, strict=True):
                draw_image(axis, images[index, 0])
                axis.set_title(f"{labels[index]}", fontsize=9)
            row[1].set_ylabel(what, fontsize=10)
        draw_image(axes[2 * number, 0], target[0])
        axes[2 * number, 0].set_title(name, fontsize=9)
        axes[2 * number + 1, 0].axis("off")
    return finish(figure, title)
