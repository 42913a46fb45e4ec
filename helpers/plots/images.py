"""Pictures of samples, of gradients that have the shape of images, and of matrices."""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from helpers.plots.figures import WIDTH, axes, finish

IN_A_ROW = 5
"""Digits in one row of a picture: more of them would be too small to read on a phone."""


def digits(images: Tensor, titles: Sequence[object], *, title: str = "") -> Figure:
    """Draw images `(N, 1, 28, 28)`, five in a row, each under its title, all under `title`."""
    columns = min(IN_A_ROW, len(images))
    rows = math.ceil(len(images) / columns)
    height = 1.4 * rows
    if title:
        height += 0.3
    figure, panels = axes(height, rows, columns, width=WIDTH / IN_A_ROW * columns)
    for axis in panels[len(images) :]:  # the last row may be shorter
        axis.axis("off")
    for axis, image, heading in zip(panels, images, titles, strict=False):
        _draw(axis, image[0])
        axis.set_title(str(heading), fontsize=10)
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

    Targets are `(T, 1, 28, 28)` with T names, two rows of the picture for each; training digits are
    `(N, 1, 28, 28)`, their labels `(N,)`, and their order `(T, N)`, the most raising one first.
    """
    columns = IN_A_ROW + 1
    figure, panels = axes(2.3 * len(targets) + 0.4, 2 * len(targets), columns)
    for index, ranking in enumerate(order.tolist()):
        raising = panels[2 * index * columns :][:columns]
        lowering = panels[(2 * index + 1) * columns :][:columns]
        # The target is drawn once, to the left of the upper row.
        _draw(raising[0], targets[index][0])
        raising[0].set_title(names[index], fontsize=9)
        lowering[0].axis("off")
        most_lowering = ranking[::-1]
        _draw_row(raising[1:], "raise", ranking, images, labels)
        _draw_row(lowering[1:], "lower", most_lowering, images, labels)
    return finish(figure, title)


def _draw_row(
    row: list[plt.Axes], name: str, ranking: list[int], images: Tensor, labels: Tensor
) -> None:
    """Draw the first digits of a ranking, as many as there are axes, each under its label."""
    row[0].set_ylabel(name, fontsize=10)
    for axis, index in zip(row, ranking[: len(row)], strict=True):
        _draw(axis, images[index, 0])
        axis.set_title(f"{labels[index]}", fontsize=9)


def _draw(axis: plt.Axes, image: Tensor) -> None:
    """Draw one image without ticks, dark ink on light paper."""
    axis.set(xticks=[], yticks=[])
    axis.imshow(image.cpu(), interpolation="nearest", cmap="gray_r", vmin=0, vmax=1)
