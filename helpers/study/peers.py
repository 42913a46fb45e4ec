"""Other libraries that compute per-sample gradients.

JAX runs in an environment of its own, the others beside torch.
"""

import copy
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

Run = Callable[[], Any]

JAX = ("JAX batch gradient", "JAX jit(vmap(grad))")
"""The methods of `helpers.study.jax_worker`."""


def jax_python() -> str | None:
    """Return the Python with JAX that `make bench` installs, or `None`."""
    python = Path(__file__).parents[2] / ".venv-jax" / "bin" / "python"
    return str(python) if python.exists() else None


def absent(method: str) -> str | None:
    """Return why a method cannot run here; `None` if it can, or belongs to no peer."""
    if method in JAX:
        return None if jax_python() else "JAX is not installed: make bench"
    if method not in IN_PROCESS:
        return None
    package, _ = IN_PROCESS[method]
    return None if find_spec(package) else f"{package} is not installed: make bench"


def _per_sample(model: nn.Module, attribute: str, backward: Callable[[], None]) -> Run:
    """Run a backward pass that stores per-sample gradients in an attribute of each parameter."""

    def run() -> dict[str, Tensor]:
        for parameter in model.parameters():
            parameter.grad = None
            setattr(parameter, attribute, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about hooks without input gradients
            backward()
        return {name: getattr(p, attribute) for name, p in model.named_parameters()}

    return run


def _opacus(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """Opacus: hooks on the layers of a `GradSampleModule` compute per-sample gradients."""
    from opacus.grad_sample import GradSampleModule

    model = copy.deepcopy(model)
    # Must match the loss below: with "mean", gradients would be B times too large.
    wrapped = GradSampleModule(model, batch_first=True, loss_reduction="sum")
    loss_fn = nn.CrossEntropyLoss(reduction="sum")

    def backward() -> None:
        loss_fn(wrapped(images), labels).backward()

    return _per_sample(model, "grad_sample", backward)


def _expanded_weights(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """ExpandedWeights: an experiment inside torch, which Opacus can use as a mode."""
    # A peer to compare with: where torch lacks it, it is not measured.
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads  # noqa: PLC2701

    model = copy.deepcopy(model)

    def backward() -> None:
        wrapped = call_for_per_sample_grads(
            model, batch_size=len(images), loss_reduction="sum", batch_first=True
        )
        F.cross_entropy(wrapped(images), labels, reduction="sum").backward()

    return _per_sample(model, "grad_sample", backward)


def _backpack(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """BackPACK: its extension `BatchGrad` computes per-sample gradients in the backward pass."""
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    model = extend(copy.deepcopy(model))
    loss_fn = extend(nn.CrossEntropyLoss(reduction="sum"))

    def backward() -> None:
        with backpack(BatchGrad()):
            loss_fn(model(images), labels).backward()

    return _per_sample(model, "grad_batch", backward)


IN_PROCESS = {
    "Opacus hooks": ("opacus", _opacus),
    "ExpandedWeights": ("torch.nn.utils._per_sample_grad", _expanded_weights),
    "BackPACK": ("backpack", _backpack),
}
"""The peers that run beside torch, `{name: (package, build)}`.

`build(model, images, labels)` copies a model that maps images `(B, ...)` to logits, and returns the
function that computes `{name: (B, *parameter.shape)}`.
"""
