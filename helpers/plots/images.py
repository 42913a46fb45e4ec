"""Pictures of samples, of gradients that have the shape of images, and of matrices."""

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
    rows = -(-len(images) // columns)
    height, width = 1.4 * rows + (0.3 if title else 0), WIDTH / IN_A_ROW * columns
    figure, panels = axes(height, rows, columns, width=width)
    for axis in panels[len(images) :]:
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
    figure, panels = axes(2.3 * len(targets) + 0.4, 2 * len(targets), IN_A_ROW + 1)
    panels_left = iter(panels)
    for target, name, ranking in zip(targets, names, order.tolist(), strict=True):
        for direction, chosen in (
            ("raise", ranking[:IN_A_ROW]),
            ("lower", ranking[: -IN_A_ROW - 1 : -1]),
        ):
            first, *row = (next(panels_left) for _ in range(IN_A_ROW + 1))
            if direction == "raise":
                _draw(first, target[0])
                first.set_title(name, fontsize=9)
            else:
                first.axis("off")
            row[0].set_ylabel(direction, fontsize=10)
            for axis, index in zip(row, chosen, strict=True):
                _draw(axis, images[index, 0])
                axis.set_title(f"{labels[index]}", fontsize=9)
    return finish(figure, title)


def _draw(axis: plt.Axes, image: Tensor) -> None:
    """Draw one image without ticks, dark ink on light paper."""
    axis.set(xticks=[], yticks=[])
    axis.imshow(image.cpu(), interpolation="nearest", cmap="gray_r", vmin=0, vmax=1)
