"""Many networks of one architecture at once, each as it would be alone: `vmap` over models."""

from helpers.ensembles.stacks import Ensemble, initialize, stack
from helpers.ensembles.training import draw_orders, predict, train

__all__ = ["Ensemble", "draw_orders", "initialize", "predict", "stack", "train"]
