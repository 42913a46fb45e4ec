"""The candidates: each method for per-sample gradients, as a function to be timed."""

import shutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from helpers import data, gradients
from helpers.models import MODELS
from helpers.study import peers
from helpers.study.peers import Run

DEFAULT, KEEP_FREED, HUGE_PAGES = "default", "freed memory kept", "huge pages"
"""The allocators: default glibc, with `helpers.memory.keep_freed`, with 2 MiB pages."""
REFERENCE = "batch gradient"
"""The method whose time is the unit."""


class Task(NamedTuple):
    """The task: a network of `helpers.models` on a batch."""

    model: str
    batch_size: int
    device: str = "cpu"
    dataset: str = "digits"

    def load(self) -> tuple[nn.Module, Tensor, Tensor]:
        """Return the network, with fixed weights, and its images and labels."""
        torch.manual_seed(0)
        model = MODELS[self.model]().to(self.device)
        images, labels = data.load_batch(self.dataset, self.batch_size, self.device)
        return model, images, labels


class Candidate(NamedTuple):
    """One of `METHODS`, with the settings under which it runs in a process of its own."""

    method: str
    compiled: bool = False
    allocator: str = DEFAULT

    def __str__(self) -> str:
        parts = [self.method]
        if self.compiled:
            parts.append("compiled")
        if self.allocator != DEFAULT:
            parts.append(self.allocator)
        return ", ".join(parts)

    def absent(self) -> str | None:
        """Return why it cannot run here, or `None` if it can."""
        if self.allocator == HUGE_PAGES and sys.platform != "linux":
            return "only Linux has transparent huge pages"
        if self.compiled and compiler_absent():
            return compiler_absent()
        return peers.absent(self.method)

    def build(self, model: nn.Module, images: Tensor, labels: Tensor) -> Run:
        """Make the function that is timed; compilation happens in its first call."""
        run = METHODS[self.method](model, images, labels)
        return torch.compile(run, dynamic=False) if self.compiled else run


def compiler_absent() -> str | None:
    """Return why `torch.compile` cannot work here, or `None` if it can."""
    if torch.cuda.is_available():
        return None
    if not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return "torch.compile needs a C++ compiler on a CPU, and there is none on the PATH"
    if " " in torch.__file__:
        return f"torch.compile cannot link to a torch whose path has a space: {torch.__file__}"
    return None


def _batch_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def compute_loss(parameters: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, images), labels)

    compute = grad(compute_loss)

    def run() -> Any:
        if torch.compiler.is_compiling():  # torch.func compiles as a whole
            return compute(parameters)
        loss = F.cross_entropy(model(images), labels)
        return torch.autograd.grad(loss, list(model.parameters()))

    return run


def _composition(
    model: nn.Module, images: Tensor, labels: Tensor, chunk_size: int | None = None
) -> Run:
    """`vmap` over `grad` over `functional_call`, as lesson 3 writes it."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def compute_loss(parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, x[None]), target[None])

    compute = vmap(grad(compute_loss), in_dims=(None, 0, 0), chunk_size=chunk_size)
    return lambda: compute(parameters, images, labels)


def _composition_in_chunks(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    return _composition(model, images, labels, chunk_size=16)


def _buffers(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Write as many numbers as per-sample gradients have, `{name: (B, *parameter.shape)}`."""
    return {name: p.new_ones((len(images), *p.shape)) for name, p in model.named_parameters()}


def _fill_fresh(model: nn.Module, images: Tensor, _: Tensor) -> Run:
    return lambda: _buffers(model, images)


def _fill_owned(model: nn.Module, images: Tensor, _: Tensor) -> Run:
    buffers = _buffers(model, images)

    def run() -> None:
        for buffer in buffers.values():
            buffer.fill_(1.0)

    return run


def _into_buffers(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    out = _buffers(model, images)
    return lambda: gradients.func_gradients(model, F.cross_entropy, images, labels, out=out)


def _loop(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
    return lambda: gradients.loop_gradients(model, F.cross_entropy, images, labels)


METHODS: dict[str, Callable[..., Run] | None] = {
    REFERENCE: _batch_gradient,
    "fill fresh memory": _fill_fresh,
    "fill owned memory": _fill_owned,
    "loop": _loop,
    "vmap(grad)": _composition,
    "vmap(grad), chunks of 16": _composition_in_chunks,
    "buffers reused": _into_buffers,
}
"""`{name: build}`; `build(model, images, labels)` returns the function that is timed."""
for _name, (_, _build) in peers.IN_PROCESS.items():
    METHODS[_name] = _build
for _name in peers.JAX:
    METHODS[_name] = None  # `helpers.study.jax_worker` has it

CANDIDATES = [Candidate(method) for method in METHODS]
for _name in (REFERENCE, "vmap(grad)", *peers.IN_PROCESS):
    CANDIDATES.append(Candidate(_name, allocator=KEEP_FREED))
for _name in (REFERENCE, "vmap(grad)"):
    CANDIDATES.append(Candidate(_name, compiled=True))
    CANDIDATES.append(Candidate(_name, compiled=True, allocator=KEEP_FREED))
CANDIDATES.append(Candidate("vmap(grad)", allocator=HUGE_PAGES))
"""All that `make bench` measures."""
