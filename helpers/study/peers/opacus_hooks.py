"""Opacus: hooks on the layers of a `GradSampleModule` compute per-sample gradients."""

import copy
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch.nn.functional as F
from torch import Tensor, nn


def absent() -> str | None:
    """Return a sentence if Opacus is not installed, else `None`."""
    return None if find_spec("opacus") else "opacus is not installed: pip install opacus==1.6.0"


def build(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], dict[str, Tensor]]:
    """Wrap a copy of the model in hooks."""
    from opacus.grad_sample import GradSampleModule

    # The reduction of the loss below: with "mean" here, all would be B times as large.
    wrapped = GradSampleModule(copy.deepcopy(model), batch_first=True, loss_reduction="sum")

    def run() -> dict[str, Tensor]:
        wrapped.zero_grad(set_to_none=True)  # also drops the per-sample gradients
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that full backward hooks see no input gradient
            F.cross_entropy(wrapped(images), labels, reduction="sum").backward()
        return {
            name.removeprefix("_module."): parameter.grad_sample
            for name, parameter in wrapped.named_parameters()
        }

    return run
