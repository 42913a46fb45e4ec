"""ExpandedWeights: torch's own trial of per-sample gradients, which Opacus can use as a mode."""

import copy
from collections.abc import Callable
from importlib.util import find_spec

import torch.nn.functional as F
from torch import Tensor, nn


def absent() -> str | None:
    """Return a sentence if this torch has no ExpandedWeights, else `None`."""
    there = find_spec("torch.nn.utils._per_sample_grad")
    return None if there else "this torch has no torch.nn.utils._per_sample_grad"


def build(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], dict[str, Tensor]]:
    """Prepare a copy of the model."""
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    model = copy.deepcopy(model)

    def run() -> dict[str, Tensor]:
        for parameter in model.parameters():
            parameter.grad_sample = None
        # The reduction of the loss below: with "mean" here, all would be B times as large.
        call = call_for_per_sample_grads(
            model, batch_size=len(images), loss_reduction="sum", batch_first=True
        )
        F.cross_entropy(call(images), labels, reduction="sum").backward()
        return {name: parameter.grad_sample for name, parameter in model.named_parameters()}

    return run
