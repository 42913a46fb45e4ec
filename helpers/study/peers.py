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
_JAX_ENVIRONMENT = Path(__file__).parents[2] / ".venv-jax"  # where `make bench` installs it


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
    for name in ("bin/python", "Scripts/python.exe"):
        if (_JAX_ENVIRONMENT / name).exists():
            return str(_JAX_ENVIRONMENT / name)
    return sys.executable if find_spec("jax") else None


def absent(method: str) -> str | None:
    """Return why a method cannot run here; `None` if it can, or belongs to no peer."""
    if method in JAX and not jax_python():
        return "JAX is not installed: make bench"
    return IN_PROCESS[method].absent() if method in IN_PROCESS else None


def opacus_hooks(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """Opacus: hooks on the layers of a `GradSampleModule` compute per-sample gradients."""
    from opacus.grad_sample import GradSampleModule

    # The reduction of the loss below: with "mean" here, all would be B times as large.
    wrapped = GradSampleModule(copy.deepcopy(model), batch_first=True, loss_reduction="sum")

    def run() -> dict[str, Tensor]:
        wrapped.zero_grad(set_to_none=True)  # also drops the per-sample gradients
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that full backward hooks see no input gradient
            F.cross_entropy(wrapped(images), labels, reduction="sum").backward()
        named = wrapped.named_parameters()
        return {name.removeprefix("_module."): p.grad_sample for name, p in named}

    return run


def expanded_weights(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """ExpandedWeights: torch's own trial, which Opacus can use as a mode."""
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    model = copy.deepcopy(model)

    def run() -> dict[str, Tensor]:
        for parameter in model.parameters():
            parameter.grad_sample = None
        call = call_for_per_sample_grads(
            model, batch_size=len(images), loss_reduction="sum", batch_first=True
        )
        F.cross_entropy(call(images), labels, reduction="sum").backward()
        return {name: parameter.grad_sample for name, parameter in model.named_parameters()}

    return run


def backpack_batchgrad(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """BackPACK: its extension `BatchGrad` computes per-sample gradients during the backward."""
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


IN_PROCESS = {
    "Opacus hooks": Peer("opacus", opacus_hooks),
    "ExpandedWeights": Peer("torch.nn.utils._per_sample_grad", expanded_weights),
    "BackPACK": Peer("backpack", backpack_batchgrad),
}
"""By name, the peers that run beside torch."""
