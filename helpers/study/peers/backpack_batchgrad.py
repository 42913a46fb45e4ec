"""BackPACK: its extension `BatchGrad` computes per-sample gradients during the backward."""

import copy
import warnings
from collections.abc import Callable
from importlib.util import find_spec

from torch import Tensor, nn


def absent() -> str | None:
    """Return a sentence if BackPACK is not installed, else `None`."""
    return None if find_spec("backpack") else "BackPACK is not installed: make bench"


def build(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], dict[str, Tensor]]:
    """Extend a copy of the model."""
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    model = extend(copy.deepcopy(model))
    loss_fn = extend(nn.CrossEntropyLoss(reduction="sum"))

    def run() -> dict[str, Tensor]:
        for parameter in model.parameters():
            parameter.grad = parameter.grad_batch = None
        with warnings.catch_warnings(), backpack(BatchGrad()):
            warnings.simplefilter("ignore")  # that the model as a whole is no layer it knows
            loss_fn(model(images), labels).backward()
        return {name: parameter.grad_batch for name, parameter in model.named_parameters()}

    return run
