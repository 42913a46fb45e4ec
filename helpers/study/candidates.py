"""What is measured: each way to per-sample gradients or Jacobians, as a function to be timed."""

import mmap
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from helpers import gradients, jacobians, norms
from helpers.models import MODELS
from helpers.study import peers
from helpers.study.facts import HUGE_PAGES, KEEP_FREED, REFERENCE, Candidate, Task

Run = Callable[[], Any]
Method = Callable[[nn.Module, Tensor, Tensor], Run]
"""`method(model, images, labels)` returns the function that is timed."""


def of_group(group: str) -> list[Candidate]:
    """List the candidates of a group: each method as it comes, and some with settings."""
    return [*map(Candidate, METHODS[group]), *SETTINGS[group]]


def absent(candidate: Candidate) -> str | None:
    """Return why a candidate cannot run here, or `None` if it can."""
    why = peers.absent(candidate.method) or (compiler_absent() if candidate.compiled else None)
    enabled = os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled")
    if candidate.allocator == HUGE_PAGES and not enabled:
        why = why or "transparent huge pages belong to Linux"
    return why


def build(
    group: str, candidate: Candidate, model: nn.Module, images: Tensor, labels: Tensor
) -> Run:
    """Make the function that is timed; compilation happens in its first call."""
    run = METHODS[group][candidate.method](model, images, labels)
    return torch.compile(run, dynamic=False) if candidate.compiled else run


def make_model(task: Task) -> nn.Module:
    """Make the model of a task, with the weights of its seed."""
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


def batch_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """One ordinary gradient, of the mean loss of the batch: the unit of every comparison."""
    parameters = list(model.parameters())
    return lambda: torch.autograd.grad(F.cross_entropy(model(images), labels), parameters)


def _helper(compute: Callable[..., Any], **options: Any) -> Method:
    return lambda model, images, labels: (
        lambda: compute(model, F.cross_entropy, images, labels, **options)
    )


def composition(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Run:
    """`vmap` over `grad` over `functional_call`, as lesson 3 writes it."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def compute_loss(parameters: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        logits = functional_call(model, parameters, (sample.unsqueeze(0),))
        return F.cross_entropy(logits, target.unsqueeze(0))

    compute = vmap(grad(compute_loss), in_dims=(None, 0, 0), **options)
    return lambda: compute(parameters, images, labels)


def jacobian_composition(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    """`vmap` over `jacrev` over `functional_call`, as lesson 4 writes it."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def outputs(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(model, parameters, (sample.unsqueeze(0),)).squeeze(0)

    compute = vmap(jacrev(outputs), in_dims=(None, 0))
    return lambda: compute(parameters, images)


def _memory(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Make as much memory as the gradients take, and write to it."""
    named = model.named_parameters()
    return {name: p.detach().new_ones((len(images), *p.shape)) for name, p in named}


def _jacobian_memory(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"jacobian": images.new_ones(len(images), 10, count)}


def _fills(make: Callable[[nn.Module, Tensor], dict[str, Tensor]]) -> dict[str, Method]:
    def owned(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
        memory = make(model, images)
        return lambda: [each.fill_(1.0) for each in memory.values()]

    fresh = lambda model, images, labels: lambda: make(model, images)  # noqa: E731
    return {"fill fresh memory": fresh, "fill owned memory": owned}


def _with_buffers(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> Run:
    out = _memory(model, images)
    return _helper(gradients.func_gradients, out=out, **options)(model, images, labels)


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


METHODS: dict[str, dict[str, Method | None]] = {
    "gradients": {
        REFERENCE: batch_gradient,
        **_fills(_memory),
        "loop": _helper(gradients.loop_gradients),
        "legacy functorch": _helper(gradients.functorch_gradients),
        "vmap(grad)": composition,
        "vmap(grad), chunks of 16": lambda *given: composition(*given, chunk_size=16),
        "vmap(grad), buffers reused": _with_buffers,
        "buffers reused, small chunks": _with_buffers_in_small_chunks,
        **{name: peer.build for name, peer in peers.IN_PROCESS.items()},
        **dict.fromkeys(peers.jax.NAMES),
    },
    "jacobians": {
        REFERENCE: batch_gradient,
        **_fills(_jacobian_memory),
        "double loop": lambda model, x, _: lambda: jacobians.loop_jacobians(model, x),
        "vmap(jacrev)": jacobian_composition,
        "func_jacobians": lambda model, x, _: lambda: jacobians.func_jacobians(model, x),
        "func_jacobians, buffer reused": _jacobian_with_buffer,
    },
    "reductions": {  # what needs no per-sample gradient to be written down
        REFERENCE: batch_gradient,
        "gradient norms": _helper(norms.gradient_norms),
        "clipped sum": _helper(norms.clipped_sum, limit=1.0),
    },
}
"""By group, whose methods compute the same thing, and by name; `None` runs in JAX's process."""

SETTINGS = {
    "gradients": [
        Candidate("vmap(grad)", compiled=True),
        Candidate("vmap(grad)", allocator=HUGE_PAGES),
        Candidate("vmap(grad)", allocator=KEEP_FREED),
        Candidate("vmap(grad)", compiled=True, allocator=KEEP_FREED),
        Candidate("buffers reused, small chunks", allocator=KEEP_FREED),
        Candidate(REFERENCE, allocator=KEEP_FREED),
        *(Candidate(name, allocator=KEEP_FREED) for name in peers.IN_PROCESS),
    ],
    "jacobians": [
        Candidate("vmap(jacrev)", compiled=True),
        Candidate("vmap(jacrev)", allocator=KEEP_FREED),
        Candidate("vmap(jacrev)", compiled=True, allocator=KEEP_FREED),
        Candidate("vmap(jacrev)", compiled=True, allocator=HUGE_PAGES),
    ],
    "reductions": [Candidate(n, allocator=KEEP_FREED) for n in METHODS["reductions"]],
}
"""By group, the candidates besides each method as it comes."""
