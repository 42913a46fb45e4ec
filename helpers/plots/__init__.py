"""The pictures of the lessons: each function takes numbers and returns a matplotlib figure."""

from helpers.plots.diagrams import in_dims, nested
from helpers.plots.graphs import agreement, curves, effects, shares, similarities
from helpers.plots.images import attributions, digits, kernel_gradients, weight_jacobian
from helpers.plots.privacy import batches, canaries, releases, spreads
from helpers.plots.timings import multiples
from helpers.plots.training import matrices, prices, rankings

__all__ = [
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
    "prices",
    "rankings",
    "releases",
    "shares",
    "similarities",
    "spreads",
    "weight_jacobian",
]
