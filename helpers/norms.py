"""Norms of per-sample gradients, and their clipped sum, without the gradients of a whole batch.

`{name: (B, *shape)}` never exists: a chunk of the batch is differentiated, reduced and forgotten.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from helpers import checks, gradients, modules

LossFn = Callable[[Tensor, Tensor], Tensor]


@torch.inference_mode(False)
def gradient_norms(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tensor,
    targets: Tensor,
    *,
    wrt: Iterable[str] | None = None,
    chunk_size: int | None = 64,
    randomness: str = "error",
) -> Tensor:
    """Interface first: slow."""
    chunk = chunk_size or max(len(data), 1)
    parts = []
    for x, t in zip(data.split(chunk), targets.split(chunk), strict=True):
        grads = gradients.func_gradients(model, loss_fn, x, t, wrt=wrt, randomness=randomness)
        parts.append(sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt())
    return torch.cat(parts)


@torch.inference_mode(False)
def clipped_sum(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tensor,
    targets: Tensor,
    limit: float,
    *,
    wrt: Iterable[str] | None = None,
    chunk_size: int | None = 64,
    randomness: str = "error",
) -> dict[str, Tensor]:
    """Interface first: slow."""
    chunk = chunk_size or max(len(data), 1)
    total: dict[str, Tensor] = {}
    for x, t in zip(data.split(chunk), targets.split(chunk), strict=True):
        grads = gradients.func_gradients(model, loss_fn, x, t, wrt=wrt, randomness=randomness)
        norms = sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()
        factors = (limit / norms).clamp(max=1)
        for name, g in grads.items():
            total[name] = total.get(name, 0) + torch.einsum("b,b...->...", factors, g)
    return total
