"""What all pictures share: a width, colours, an image, a figure that is shown once."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

WIDTH = 5.4
"""Inches. On a phone, 358 pixels wide, text of 9 points is then 8 pixels high; none is smaller."""
# Colours that the colour-blind tell apart (Okabe and Ito, 2008), for what lessons draw, too.
plt.rcParams["axes.prop_cycle"] = plt.cycler(
    color=["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#555555"]
)
# Blue below zero, white at zero, red above; gray is what holds no number.
SIGNED = plt.get_cmap("RdBu_r").with_extremes(bad="lightgray")


def draw_image(axis: plt.Axes, image: Tensor, **options: object) -> object:
    """Draw one `(height, width)` image without ticks, dark ink on light paper unless told."""
    options = options or {"cmap": "gray_r", "vmin": 0, "vmax": 1}
    mappable = axis.imshow(image.cpu(), interpolation="nearest", **options)
    axis.set(xticks=[], yticks=[])
    return mappable


def finish(figure: Figure, title: str = "", legend: int = 0) -> Figure:
    """Close the figure, which a notebook then shows once, under its title.

    A legend of so many columns stands below it, beside what is drawn and not on it. All axes have
    the same: those of the first.
    """
    figure.suptitle(title, fontsize=11)
    if legend:
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, fontsize=9, loc="outside lower center", ncols=legend)
    plt.close(figure)
    return figure
