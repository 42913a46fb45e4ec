"""What is measured: each way to per-sample gradients or Jacobians, as a function to be timed."""

import mmap
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, jacrev, vmap

from helpers import data, gradients, jacobians, models, norms
from helpers.study import peers

Run = Callable[[], Any]
MODELS = {"SimpleCNN": models.SimpleCNN, "MLP": models.MLP, "transformer": models.SmallTransformer}


@dataclass(frozen=True)
class Task:
    """What is to be differentiated: a model, with weights from a seed, on a batch."""

    model: str = "SimpleCNN"
    batch_size: int = 64
    dataset: str = "digits"
    seed: int = 0
    device: str = "cpu"

    def load(self) -> tuple[nn.Module, Tensor, Tensor]:
        """Make the model, and load the images and labels.

        Raises:
            ValueError: There is no such model or data set, or it has fewer samples.
        """
        return self.model_of_seed(), *data.load_batch(self.dataset, self.batch_size, self.device)

    def model_of_seed(self) -> nn.Module:
        """Make the model.

        Raises:
            ValueError: There is no such model.
        """
        if self.model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}, got {self.model!r}")
        torch.manual_seed(self.seed)
        return MODELS[self.model]().to(self.device)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class Candidate:
    """One way to compute something.

    Attributes:
        build: `build(model, images, labels)` returns the function that is timed.
        environment: Set before its process starts.
        keep_freed: Whether its process keeps freed memory, see `helpers.memory`.
        absent: Returns a sentence if it cannot run here, else None.
    """

    build: Callable[[nn.Module, Tensor, Tensor], Run] | None
    environment: Mapping[str, str] = field(default_factory=dict)
    keep_freed: bool = False
    absent: Callable[[], str | None] = lambda: None


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


def compiled(build: Callable[..., Run]) -> Callable[..., Run]:
    """Compile what `build` makes; compilation happens in the first call."""

    def build_compiled(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
        return torch.compile(build(model, images, labels), dynamic=False)

    return build_compiled


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
    if torch.cuda.is_available() or any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return None
    return "torch.compile needs a C++ compiler on a CPU, and there is none on the PATH"


def huge_pages_absent() -> str | None:
    """Say why huge pages cannot be asked for, if they cannot."""
    if sys.platform == "linux" and os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled"):
        return None
    return "transparent huge pages belong to Linux"


HUGE = {"THP_MEM_ALLOC_ENABLE": "1"}
REFERENCE = "batch gradient"
GRADIENTS = {
    REFERENCE: Candidate(batch_gradient),
    "batch gradient, freed memory kept": Candidate(batch_gradient, keep_freed=True),
    "fill fresh memory": Candidate(fill_fresh),
    "fill owned memory": Candidate(fill_owned),
    "loop": Candidate(_helper(gradients.loop_gradients)),
    "legacy functorch": Candidate(_helper(gradients.functorch_gradients)),
    "vmap(grad)": Candidate(composition),
    "vmap(grad), chunks of 16": Candidate(lambda *given: composition(*given, chunk_size=16)),
    "vmap(grad), compiled": Candidate(compiled(composition), absent=compiler_absent),
    "vmap(grad), huge pages": Candidate(composition, HUGE, absent=huge_pages_absent),
    "vmap(grad), buffers reused": Candidate(_with_buffers),
    "buffers reused, small chunks": Candidate(_with_buffers_in_small_chunks),
    "vmap(grad), freed memory kept": Candidate(composition, keep_freed=True),
    "compiled, freed memory kept": Candidate(
        compiled(composition), keep_freed=True, absent=compiler_absent
    ),
    **{name: Candidate(peer.build, absent=peer.absent) for name, peer in peers.IN_PROCESS.items()},
    **{
        f"{name}, freed memory kept": Candidate(peer.build, keep_freed=True, absent=peer.absent)
        for name, peer in peers.IN_PROCESS.items()
    },
    **{name: Candidate(None, absent=peers.jax.absent) for name in peers.jax.NAMES},
}
"""Everything that computes per-sample gradients, and what it is measured against."""


def _jacobian_composition(mode: Callable[..., Any]) -> Callable[..., Run]:
    def build(model: nn.Module, images: Tensor, labels: Tensor) -> Run:
        parameters = _detached(model)

        def outputs(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
            return functional_call(model, parameters, (sample.unsqueeze(0),)).squeeze(0)

        compute = vmap(mode(outputs), in_dims=(None, 0))
        return lambda: compute(parameters, images)

    return build


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


_reverse = _jacobian_composition(jacrev)
JACOBIANS = {
    REFERENCE: Candidate(batch_gradient),
    "fill fresh memory": Candidate(_jacobian_fill_fresh),
    "fill owned memory": Candidate(_jacobian_fill_owned),
    "double loop": Candidate(_jacobian_helper(jacobians.loop_jacobians)),
    "vmap(jacrev)": Candidate(_reverse),
    "func_jacobians": Candidate(_jacobian_helper(jacobians.func_jacobians)),
    "vmap(jacrev), compiled": Candidate(compiled(_reverse), absent=compiler_absent),
    "vmap(jacrev), freed memory kept": Candidate(_reverse, keep_freed=True),
    "compiled, freed memory kept": Candidate(
        compiled(_reverse), keep_freed=True, absent=compiler_absent
    ),
    "compiled, huge pages": Candidate(
        compiled(_reverse), HUGE, absent=lambda: compiler_absent() or huge_pages_absent()
    ),
    "func_jacobians, buffer reused": Candidate(_jacobian_with_buffer),
}
"""Everything that computes Jacobians, and what it is measured against."""

FORWARD = {
    "vmap(jacrev)": Candidate(_reverse),
    "vmap(jacfwd)": Candidate(_jacobian_composition(jacfwd)),
}
"""The two modes against each other, for a batch of a few: forward mode holds P x P numbers."""

_norms, _clipped = _helper(norms.gradient_norms), _helper(norms.clipped_sum, limit=1.0)
REDUCTIONS = {
    REFERENCE: Candidate(batch_gradient),
    "gradient norms": Candidate(_norms),
    "clipped sum": Candidate(_clipped),
    "batch gradient, freed memory kept": Candidate(batch_gradient, keep_freed=True),
    "gradient norms, freed memory kept": Candidate(_norms, keep_freed=True),
    "clipped sum, freed memory kept": Candidate(_clipped, keep_freed=True),
}
"""What needs no per-sample gradient to be written down."""

GROUPS = {
    "gradients": GRADIENTS,
    "jacobians": JACOBIANS,
    "forward": FORWARD,
    "reductions": REDUCTIONS,
}
