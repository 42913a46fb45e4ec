"""Many networks at once: their parameters stacked, `(M, *shape)`, and `vmap` over models.

M networks of one architecture are one set of tensors. Training them together gives each what it
would get alone, from the same start and the same data: nothing passes from one to another.

Optimizers are functions here: those of `helpers.optimizers`.
"""

from helpers.ensembles.stacks import Ensemble, initialise, stack
from helpers.ensembles.training import draw_orders, predict, train

__all__ = ["Ensemble", "draw_orders", "initialise", "predict", "stack", "train"]
