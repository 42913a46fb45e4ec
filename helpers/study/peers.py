"""The libraries that compute per-sample gradients too.

JAX has a process and an environment of its own. The others run beside torch.
"""

import copy
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

Run = Callable[[], dict[str, Tensor]]

JAX = ("JAX batch gradient", "JAX jit(vmap(grad))")
"""The methods of `helpers.study.jax_worker`."""


@dataclass(frozen=True)
class Peer:
    """A library that runs beside torch.

    Attributes:
        package: What is imported of it.
        build: Copies a model that maps images `(B, ...)` to logits, and returns the function to be
            timed, which computes `{name: (B, *parameter.shape)}` for images and labels `(B,)`.
    """

    package: str
    build: Callable[[nn.Module, Tensor, Tensor], Run]

    def absent(self) -> str | None:
        """Return a sentence if it is not installed, else `None`."""
        return None if find_spec(self.package) else f"{self.package} is not installed: make bench"


def jax_python() -> str | None:
    """Return the interpreter that has JAX: that of `make bench`, else this one, else `None`."""
    environment = Path(__file__).parents[2] / ".venv-jax"
    for name in ("bin/python", "Scripts/python.exe"):
        if (environment / name).exists():
            return str(environment / name)
    return sys.executable if find_spec("jax") else None


def absent(method: str) -> str | None:
    """Return why a method cannot run here; `None` if it can, or belongs to no peer."""
    if method in JAX:
        return None if jax_python() else "JAX is not installed: make bench"
    return IN_PROCESS[method].absent() if method in IN_PROCESS else None


def _per_sample(model: nn.Module, attribute: str, backward: Callable[[], None]) -> Run:
    """Run a backward pass, after which each parameter has its gradients in an attribute."""

    def run() -> dict[str, Tensor]:
        for parameter in model.parameters():
            parameter.grad = None
            setattr(parameter, attribute, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks without an input gradient, of whole models
            backward()
        return {name: getattr(each, attribute) for name, each in model.named_parameters()}

    return run


def opacus_hooks(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """Opacus: hooks on the layers of a `GradSampleModule` compute per-sample gradients."""
    from opacus.grad_sample import GradSampleModule

    model = copy.deepcopy(model)
    # The reduction of the loss below: with "mean" here, all would be B times as large.
    wrapped = GradSampleModule(model, batch_first=True, loss_reduction="sum")
    loss_fn = nn.CrossEntropyLoss(reduction="sum")
    return _per_sample(model, "grad_sample", lambda: loss_fn(wrapped(images), labels).backward())


def expanded_weights(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """ExpandedWeights: torch's own trial, which Opacus can use as a mode."""
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    model = copy.deepcopy(model)
    options = {"batch_size": len(images), "loss_reduction": "sum", "batch_first": True}

    def backward() -> None:
        logits = call_for_per_sample_grads(model, **options)(images)
        F.cross_entropy(logits, labels, reduction="sum").backward()

    return _per_sample(model, "grad_sample", backward)


def backpack_batchgrad(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """BackPACK: its extension `BatchGrad` computes per-sample gradients during the backward."""
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad

    model, loss_fn = extend(copy.deepcopy(model)), extend(nn.CrossEntropyLoss(reduction="sum"))

    def backward() -> None:
        with backpack(BatchGrad()):
            loss_fn(model(images), labels).backward()

    return _per_sample(model, "grad_batch", backward)


IN_PROCESS = {
    "Opacus hooks": Peer("opacus", opacus_hooks),
    "ExpandedWeights": Peer("torch.nn.utils._per_sample_grad", expanded_weights),
    "BackPACK": Peer("backpack", backpack_batchgrad),
}
"""By name, the peers that run beside torch."""
