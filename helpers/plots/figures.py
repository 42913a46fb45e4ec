"""What all pictures share: the colours of signed numbers, an image, a figure that is shown once."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

SIGNED = plt.get_cmap("RdBu_r").copy()  # blue below zero, white at zero, red above
SIGNED.set_bad("lightgray")  # what holds no number


def draw_image(axis: plt.Axes, image: Tensor, **options: object) -> object:
    """Draw one `(height, width)` image without ticks, dark ink on light paper unless told."""
    options = options or {"cmap": "gray_r", "vmin": 0, "vmax": 1}
    mappable = axis.imshow(image.cpu(), interpolation="nearest", **options)
    axis.set(xticks=[], yticks=[])
    return mappable


def finish(figure: Figure) -> Figure:
    """Close the figure: a notebook then shows it once, as its cell's result."""
    plt.close(figure)
    return figure
