"""Many networks of one architecture at once: their parameters stacked, and `vmap` over models.

Each network gets what it would get alone, from the same start and the same data.
"""

from helpers.ensembles.stacks import Ensemble, initialise, stack
from helpers.ensembles.training import draw_orders, predict, train

__all__ = ["Ensemble", "draw_orders", "initialise", "predict", "stack", "train"]
