"""What all pictures share: the colours of signed numbers, an image, a figure that is shown once."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

# Blue below zero, white at zero, red above; gray is what holds no number.
SIGNED = plt.get_cmap("RdBu_r").with_extremes(bad="lightgray")


def draw_image(axis: plt.Axes, image: Tensor, **options: object) -> object:
    """Draw one `(height, width)` image without ticks, dark ink on light paper unless told."""
    options = options or {"cmap": "gray_r", "vmin": 0, "vmax": 1}
    mappable = axis.imshow(image.cpu(), interpolation="nearest", **options)
    axis.set(xticks=[], yticks=[])
    return mappable


def finish(figure: Figure, legend: int = 0) -> Figure:
    """Close the figure, which a notebook then shows once; `legend` columns stand above, if any."""
    if legend:  # beside what is drawn, not on it
        figure.legend(fontsize=9, loc="outside upper center", ncols=legend)
    plt.close(figure)
    return figure
