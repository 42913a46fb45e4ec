"""The pictures of the lessons: each function takes numbers and returns a matplotlib figure."""

from helpers.plots.diagrams import in_dims, nested
from helpers.plots.graphs import agreement, curves, effects, shares, similarities
from helpers.plots.images import attributions, digits, kernel_gradients, norms, weight_jacobian
from helpers.plots.privacy import batches, canaries, releases, spreads
from helpers.plots.sliders import Slider
from helpers.plots.timings import multiples
from helpers.plots.training import matrices, prices, rankings

__all__ = [
    "Slider",
    "agreement",
    "attributions",
    "batches",
    "canaries",
    "curves",
    "digits",
    "effects",
    "in_dims",
    "kernel_gradients",
    "matrices",
    "multiples",
    "nested",
    "norms",
    "prices",
    "rankings",
    "releases",
    "shares",
    "similarities",
    "spreads",
    "weight_jacobian",
]
