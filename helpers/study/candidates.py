"""What is measured: each way to per-sample gradients or Jacobians, as a function to be timed."""

import mmap
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from helpers import data, gradients, jacobians, models, norms
from helpers.study import peers
from helpers.study.facts import HUGE_PAGES, KEEP_FREED, REFERENCE, Candidate, Task

Run = Callable[[], Any]
MODELS = {"SimpleCNN": models.SimpleCNN, "MLP": models.MLP, "transformer": models.SmallTransformer}


@dataclass(frozen=True)
class Method:
    """One way to compute something.

    Attributes:
        build: `build(model, images, labels)` returns the function that is timed; `None` for what
            runs in a process that is not ours.
        absent: Returns a sentence if it cannot run here, else None.
    """

    build: Callable[[nn.Module, Tensor, Tensor], Run] | None
    absent: Callable[[], str | None] = lambda: None


@dataclass(frozen=True)
class Group:
    """Methods that compute the same thing, and the candidates that are measured of them."""

    methods: Mapping[str, Method]
    candidates: tuple[Candidate, ...]

    def absent(self, candidate: Candidate) -> str | None:
        """Say why a candidate cannot run here, if it cannot."""
        why = self.methods[candidate.method].absent()
        if candidate.compiled:
            why = why or compiler_absent()
        if candidate.allocator == HUGE_PAGES:
            why = why or huge_pages_absent()
        return why

    def build(self, candidate: Candidate, model: nn.Module, images: Tensor, labels: Tensor) -> Run:
        """Make the function that is timed; compilation happens in its first call."""
        run = self.methods[candidate.method].build(model, images, labels)
        return torch.compile(run, dynamic=False) if candidate.compiled else run


def load(task: Task) -> tuple[nn.Module, Tensor, Tensor]:
    """Make the model of a task, and load its images and labels.

    Raises:
        ValueError: There is no such model or data set, or it has fewer samples.
    """
    return make_model(task), *data.load_batch(task.dataset, task.batch_size, task.device)


def make_model(task: Task) -> nn.Module:
    """Make the model of a task, with the weights of its seed.

    Raises:
        ValueError: There is no such model.
    """
    if task.model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {task.model!r}")
    torch.manual_seed(task.seed)
    return MODELS[task.model]().to(task.device)


def _detached(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def batch_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """One ordinary gradient, of the mean loss of the batch: the unit of every comparison."""
    parameters = list(model.parameters())
    return lambda: torch.autograd.grad(F.cross_entropy(model(images), labels), parameters)


def _gradient_buffers(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    return {
        name: parameter.new_zeros((len(images), *parameter.shape))
        for name, parameter in _detached(model).items()
    }


def fill_fresh(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """Allocate and write as many numbers as the gradients have."""
    parameters = _detached(model)
    return lambda: {
        name: parameter.new_ones((len(images), *parameter.shape))
        for name, parameter in parameters.items()
    }


def fill_owned(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """Write as many numbers as the gradients have into memory that is there already."""
    buffers = _gradient_buffers(model, images)
    return lambda: {name: buffer.fill_(1.0) for name, buffer in buffers.items()}


def composition(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Run:
    """`vmap` over `grad` over `functional_call`, as lesson 3 writes it."""
    parameters = _detached(model)

    def compute_loss(parameters: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        logits = functional_call(model, parameters, (sample.unsqueeze(0),))
        return F.cross_entropy(logits, target.unsqueeze(0))

    compute = vmap(grad(compute_loss), in_dims=(None, 0, 0), **options)
    return lambda: compute(parameters, images, labels)


def _with_buffers(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Run:
    options["out"] = _gradient_buffers(model, images)
    return lambda: gradients.func_gradients(model, F.cross_entropy, images, labels, **options)


def _with_buffers_in_small_chunks(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """Take chunks whose gradients, of the largest parameter, are just below 32 MiB.

    Up to there glibc's malloc comes to keep what is freed: DEFAULT_MMAP_THRESHOLD_MAX, mallopt(3).
    """
    largest = max(parameter.nbytes for parameter in model.parameters())
    chunk_size = max(1, (32 * 2**20 - mmap.PAGESIZE) // largest)
    return _with_buffers(model, images, labels, chunk_size=chunk_size)


def _helper(compute: Callable[..., Any], **options: Any) -> Callable[..., Run]:
    def build(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
        return lambda: compute(model, F.cross_entropy, images, labels, **options)

    return build


def compiler_absent() -> str | None:
    """Say why `torch.compile` cannot work here, if it cannot."""
    if torch.cuda.is_available():
        return None
    if not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return "torch.compile needs a C++ compiler on a CPU, and there is none on the PATH"
    if " " in torch.__file__:
        return f"torch.compile cannot link to a torch whose path has a space: {torch.__file__}"
    return None


def huge_pages_absent() -> str | None:
    """Say why huge pages cannot be asked for, if they cannot."""
    if sys.platform == "linux" and os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled"):
        return None
    return "transparent huge pages belong to Linux"


def _as_it_comes(methods: Mapping[str, Method]) -> tuple[Candidate, ...]:
    return tuple(map(Candidate, methods))


GRADIENT_METHODS = {
    REFERENCE: Method(batch_gradient),
    "fill fresh memory": Method(fill_fresh),
    "fill owned memory": Method(fill_owned),
    "loop": Method(_helper(gradients.loop_gradients)),
    "legacy functorch": Method(_helper(gradients.functorch_gradients)),
    "vmap(grad)": Method(composition),
    "vmap(grad), chunks of 16": Method(lambda *given: composition(*given, chunk_size=16)),
    "vmap(grad), buffers reused": Method(_with_buffers),
    "buffers reused, small chunks": Method(_with_buffers_in_small_chunks),
    **{name: Method(peer.build, peer.absent) for name, peer in peers.IN_PROCESS.items()},
    **{name: Method(None, peers.jax.absent) for name in peers.jax.NAMES},
}
GRADIENTS = Group(
    GRADIENT_METHODS,
    (
        *_as_it_comes(GRADIENT_METHODS),
        Candidate("vmap(grad)", compiled=True),
        Candidate("vmap(grad)", allocator=HUGE_PAGES),
        Candidate("vmap(grad)", allocator=KEEP_FREED),
        Candidate("vmap(grad)", compiled=True, allocator=KEEP_FREED),
        Candidate("buffers reused, small chunks", allocator=KEEP_FREED),
        Candidate(REFERENCE, allocator=KEEP_FREED),
        *(Candidate(name, allocator=KEEP_FREED) for name in peers.IN_PROCESS),
    ),
)
"""Everything that computes per-sample gradients, and what it is measured against."""


def jacobian_composition(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """`vmap` over `jacrev` over `functional_call`, as lesson 4 writes it."""
    parameters = _detached(model)

    def outputs(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(model, parameters, (sample.unsqueeze(0),)).squeeze(0)

    compute = vmap(jacrev(outputs), in_dims=(None, 0))
    return lambda: compute(parameters, images)


def _jacobian_shape(model: nn.Module, images: Tensor) -> tuple[int, int, int]:
    return len(images), 10, sum(parameter.numel() for parameter in model.parameters())


def _jacobian_fill_fresh(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    shape = _jacobian_shape(model, images)
    return lambda: images.new_ones(shape)


def _jacobian_fill_owned(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    buffer = images.new_zeros(_jacobian_shape(model, images))
    return lambda: buffer.fill_(1.0)


def _jacobian_with_buffer(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    buffer = images.new_zeros(_jacobian_shape(model, images))
    return lambda: jacobians.func_jacobians(model, images, out=buffer)


def _jacobian_helper(compute: Callable[..., Any]) -> Callable[..., Run]:
    return lambda model, images, labels: lambda: compute(model, images)


JACOBIAN_METHODS = {
    REFERENCE: Method(batch_gradient),
    "fill fresh memory": Method(_jacobian_fill_fresh),
    "fill owned memory": Method(_jacobian_fill_owned),
    "double loop": Method(_jacobian_helper(jacobians.loop_jacobians)),
    "vmap(jacrev)": Method(jacobian_composition),
    "func_jacobians": Method(_jacobian_helper(jacobians.func_jacobians)),
    "func_jacobians, buffer reused": Method(_jacobian_with_buffer),
}
JACOBIANS = Group(
    JACOBIAN_METHODS,
    (
        *_as_it_comes(JACOBIAN_METHODS),
        Candidate("vmap(jacrev)", compiled=True),
        Candidate("vmap(jacrev)", allocator=KEEP_FREED),
        Candidate("vmap(jacrev)", compiled=True, allocator=KEEP_FREED),
        Candidate("vmap(jacrev)", compiled=True, allocator=HUGE_PAGES),
    ),
)
"""Everything that computes Jacobians, and what it is measured against."""

REDUCTION_METHODS = {
    REFERENCE: Method(batch_gradient),
    "gradient norms": Method(_helper(norms.gradient_norms)),
    "clipped sum": Method(_helper(norms.clipped_sum, limit=1.0)),
}
REDUCTIONS = Group(
    REDUCTION_METHODS,
    (
        *_as_it_comes(REDUCTION_METHODS),
        *(Candidate(name, allocator=KEEP_FREED) for name in REDUCTION_METHODS),
    ),
)
"""What needs no per-sample gradient to be written down."""

GROUPS = {"gradients": GRADIENTS, "jacobians": JACOBIANS, "reductions": REDUCTIONS}
