"""What is measured: each way to per-sample gradients or Jacobians, as a function to be timed."""

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from helpers import gradients, jacobians
from helpers.models import MODELS
from helpers.study import peers
from helpers.study.records import DEFAULT, HUGE_PAGES, KEEP_FREED, REFERENCE, Candidate, Task

Run = Callable[[], Any]
Method = Callable[[nn.Module, Tensor, Tensor], Run]
"""`method(model, images, labels)` returns the function that is timed."""


def of_group(group: str) -> list[Candidate]:
    """List the candidates of a group: each method as it comes, and some with settings."""
    known = [*map(Candidate, METHODS[group])]
    for (compiled, allocator), names in SETTINGS.items():
        known += [Candidate(name, compiled, allocator) for name in METHODS[group] if name in names]
    return known


def absent(candidate: Candidate, task: Task) -> str | None:
    """Return why a candidate cannot run here, or `None` if it can."""
    if candidate.method in peers.JAX and task.model != "SimpleCNN":
        return "in JAX there is SimpleCNN alone"
    thp = "/sys/kernel/mm/transparent_hugepage/enabled"
    if candidate.allocator == HUGE_PAGES and not os.path.exists(thp):
        return "transparent huge pages belong to Linux"
    return peers.absent(candidate.method) or (compiler_absent() if candidate.compiled else None)


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


def composition(
    model: nn.Module, images: Tensor, labels: Tensor, *, jacobian: bool = False, **options: Any
) -> Run:
    """`vmap` over `grad` or `jacrev` over `functional_call`, as lessons 3 and 4 write it."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def compute_logits(parameters: dict[str, Tensor], sample: Tensor, _: Tensor) -> Tensor:
        return functional_call(model, parameters, (sample.unsqueeze(0),)).squeeze(0)

    def compute_loss(parameters: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(compute_logits(parameters, sample, target), target)

    one = jacrev(compute_logits) if jacobian else grad(compute_loss)
    compute = vmap(one, in_dims=(None, 0, 0), **options)
    return lambda: compute(parameters, images, labels)


def _memory(model: nn.Module, images: Tensor, outputs: int) -> Tensor:
    """Make as much memory as the result takes, and write to it."""
    return images.new_ones(len(images), outputs, sum(p.numel() for p in model.parameters()))


def _fills(outputs: int) -> dict[str, Method]:
    """Write as many numbers as a result has, which costs its time at least."""

    def owned(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
        memory = _memory(model, images, outputs)
        return lambda: memory.fill_(1.0)

    fresh = lambda model, images, _: lambda: _memory(model, images, outputs)  # noqa: E731
    return {"fill fresh memory": fresh, "fill owned memory": owned}


def _helper(compute: Callable[..., Any]) -> Method:
    return lambda model, *batch: lambda: compute(model, F.cross_entropy, *batch)


def _with_buffers(model: nn.Module, *batch: Tensor) -> Run:
    out = {name: p.new_ones(len(batch[0]), *p.shape) for name, p in model.named_parameters()}
    return lambda: gradients.func_gradients(model, F.cross_entropy, *batch, out=out)


METHODS: dict[str, dict[str, Method | None]] = {
    "gradients": {
        REFERENCE: batch_gradient,
        **_fills(outputs=1),
        "loop": _helper(gradients.loop_gradients),
        "legacy functorch": _helper(gradients.functorch_gradients),
        "vmap(grad)": composition,
        "vmap(grad), chunks of 16": lambda *given: composition(*given, chunk_size=16),
        "vmap(grad), buffers reused": _with_buffers,
        **{name: peer.build for name, peer in peers.IN_PROCESS.items()},
        **dict.fromkeys(peers.JAX),
    },
    "jacobians": {
        REFERENCE: batch_gradient,
        **_fills(outputs=10),
        "double loop": lambda model, x, _: lambda: jacobians.loop_jacobians(model, x),
        "vmap(jacrev)": lambda *given: composition(*given, jacobian=True),
        "func_jacobians": lambda model, x, _: lambda: jacobians.func_jacobians(model, x),
    },
}
"""By group, whose methods compute the same thing, and by name; `None` is for JAX's worker."""

_COMPOSED = {"vmap(grad)", "vmap(jacrev)"}
SETTINGS = {
    (True, DEFAULT): _COMPOSED,
    (True, KEEP_FREED): _COMPOSED,
    (False, HUGE_PAGES): {"vmap(grad)"},
    (False, KEEP_FREED): {REFERENCE, *_COMPOSED, *peers.IN_PROCESS},
}
"""Whether compiled and which allocator, with the methods that run so, too."""
