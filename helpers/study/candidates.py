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

from helpers import data, gradients, jacobians, norms
from helpers.models import MODELS
from helpers.study import peers
from helpers.study.facts import HUGE_PAGES, KEEP_FREED, REFERENCE, Candidate, Task

Run = Callable[[], Any]
Method = Callable[[nn.Module, Tensor, Tensor], Run]
"""`method(model, images, labels)` returns the function that is timed."""


@dataclass(frozen=True)
class Group:
    """Methods that compute the same thing, and the candidates that are measured of them.

    Attributes:
        methods: By name; `None` for what runs in a process that is not ours.
        settings: Candidates besides each method as it comes.
    """

    methods: Mapping[str, Method | None]
    settings: tuple[Candidate, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All that is measured."""
        return (*map(Candidate, self.methods), *self.settings)

    def absent(self, candidate: Candidate) -> str | None:
        """Return why a candidate cannot run here, or `None` if it can."""
        why = peers.absent(candidate.method)
        if candidate.compiled:
            why = why or compiler_absent()
        if candidate.allocator == HUGE_PAGES:
            why = why or huge_pages_absent()
        return why

    def build(self, candidate: Candidate, model: nn.Module, images: Tensor, labels: Tensor) -> Run:
        """Make the function that is timed; compilation happens in its first call."""
        run = self.methods[candidate.method](model, images, labels)
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


def compiler_absent() -> str | None:
    """Return why `torch.compile` cannot work here, or `None` if it can."""
    if torch.cuda.is_available():
        return None
    if not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return "torch.compile needs a C++ compiler on a CPU, and there is none on the PATH"
    if " " in torch.__file__:
        return f"torch.compile cannot link to a torch whose path has a space: {torch.__file__}"
    return None


def huge_pages_absent() -> str | None:
    """Return why huge pages cannot be asked for, or `None` if they can."""
    if sys.platform == "linux" and os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled"):
        return None
    return "transparent huge pages belong to Linux"


def batch_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """One ordinary gradient, of the mean loss of the batch: the unit of every comparison."""
    parameters = list(model.parameters())
    return lambda: torch.autograd.grad(F.cross_entropy(model(images), labels), parameters)


def _helper(compute: Callable[..., Any], **options: Any) -> Method:
    return lambda model, images, labels: (
        lambda: compute(model, F.cross_entropy, images, labels, **options)
    )


def _detached(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def composition(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Run:
    """`vmap` over `grad` over `functional_call`, as lesson 3 writes it."""
    parameters = _detached(model)

    def compute_loss(parameters: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        logits = functional_call(model, parameters, (sample.unsqueeze(0),))
        return F.cross_entropy(logits, target.unsqueeze(0))

    compute = vmap(grad(compute_loss), in_dims=(None, 0, 0), **options)
    return lambda: compute(parameters, images, labels)


def jacobian_composition(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """`vmap` over `jacrev` over `functional_call`, as lesson 4 writes it."""
    parameters = _detached(model)

    def outputs(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(model, parameters, (sample.unsqueeze(0),)).squeeze(0)

    compute = vmap(jacrev(outputs), in_dims=(None, 0))
    return lambda: compute(parameters, images)


def _memory(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Make as much memory as the gradients take, and write to it."""
    return {
        name: parameter.new_ones((len(images), *parameter.shape))
        for name, parameter in _detached(model).items()
    }


def _jacobian_memory(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"jacobian": images.new_ones(len(images), 10, count)}


def _fill_fresh(make: Callable[[nn.Module, Tensor], dict[str, Tensor]]) -> Method:
    return lambda model, images, labels: lambda: make(model, images)


def _fill_owned(make: Callable[[nn.Module, Tensor], dict[str, Tensor]]) -> Method:
    def build(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
        owned = make(model, images)
        return lambda: [each.fill_(1.0) for each in owned.values()]

    return build


def _with_buffers(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Run:
    run = _helper(gradients.func_gradients, out=_memory(model, images), **options)
    return run(model, images, labels)


def _with_buffers_in_small_chunks(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """Take chunks whose gradients, of the largest parameter, are just below 32 MiB.

    Up to there glibc's malloc comes to keep what is freed: DEFAULT_MMAP_THRESHOLD_MAX, mallopt(3).
    """
    largest = max(parameter.nbytes for parameter in model.parameters())
    chunk_size = max(1, (32 * 2**20 - mmap.PAGESIZE) // largest)
    return _with_buffers(model, images, labels, chunk_size=chunk_size)


def _jacobian_with_buffer(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    buffer = _jacobian_memory(model, images)["jacobian"]
    return lambda: jacobians.func_jacobians(model, images, out=buffer)


GRADIENTS = Group(
    {
        REFERENCE: batch_gradient,
        "fill fresh memory": _fill_fresh(_memory),
        "fill owned memory": _fill_owned(_memory),
        "loop": _helper(gradients.loop_gradients),
        "legacy functorch": _helper(gradients.functorch_gradients),
        "vmap(grad)": composition,
        "vmap(grad), chunks of 16": lambda *given: composition(*given, chunk_size=16),
        "vmap(grad), buffers reused": _with_buffers,
        "buffers reused, small chunks": _with_buffers_in_small_chunks,
        **{name: peer.build for name, peer in peers.IN_PROCESS.items()},
        **dict.fromkeys(peers.jax.NAMES),
    },
    (
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

JACOBIANS = Group(
    {
        REFERENCE: batch_gradient,
        "fill fresh memory": _fill_fresh(_jacobian_memory),
        "fill owned memory": _fill_owned(_jacobian_memory),
        "double loop": lambda model, x, _: lambda: jacobians.loop_jacobians(model, x),
        "vmap(jacrev)": jacobian_composition,
        "func_jacobians": lambda model, x, _: lambda: jacobians.func_jacobians(model, x),
        "func_jacobians, buffer reused": _jacobian_with_buffer,
    },
    (
        Candidate("vmap(jacrev)", compiled=True),
        Candidate("vmap(jacrev)", allocator=KEEP_FREED),
        Candidate("vmap(jacrev)", compiled=True, allocator=KEEP_FREED),
        Candidate("vmap(jacrev)", compiled=True, allocator=HUGE_PAGES),
    ),
)
"""Everything that computes Jacobians, and what it is measured against."""

_REDUCTIONS = {
    REFERENCE: batch_gradient,
    "gradient norms": _helper(norms.gradient_norms),
    "clipped sum": _helper(norms.clipped_sum, limit=1.0),
}
REDUCTIONS = Group(
    _REDUCTIONS, tuple(Candidate(name, allocator=KEEP_FREED) for name in _REDUCTIONS)
)
"""What needs no per-sample gradient to be written down."""

GROUPS = {"gradients": GRADIENTS, "jacobians": JACOBIANS, "reductions": REDUCTIONS}
