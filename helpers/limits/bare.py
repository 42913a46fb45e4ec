"""The composition that the gallery runs, bare, and what it runs it on."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap


class Case(NamedTuple):
    """A model, a loss, and a batch to differentiate it at."""

    model: nn.Module
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    data: Tensor
    targets: Tensor


class Classifier(nn.Linear):
    """One linear layer from digits `(B, 1, 28, 28)` to logits `(B, 10)`."""

    def __init__(self) -> None:
        super().__init__(28 * 28, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map digits to logits."""
        return super().forward(images.flatten(1))


def bare_gradients(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    data: Tensor,
    targets: Tensor,
    **options: object,
) -> dict[str, Tensor]:
    """Compute per-sample gradients `{name: (B, *shape)}` as PyTorch's tutorial does."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    buffers = {name: b.detach() for name, b in model.named_buffers()}

    def compute_loss(params, buffers, sample, target):
        predictions = functional_call(model, (params, buffers), (sample.unsqueeze(0),))
        return loss_fn(predictions, target.unsqueeze(0))

    compute = vmap(grad(compute_loss), in_dims=(None, None, 0, 0), **options)
    return compute(params, buffers, data, targets)


def sequences(images: Tensor) -> Tensor:
    """Read digits `(B, 1, 28, 28)` as sequences of 28 rows of ink, `(B, 28, 28)`."""
    return images[:, 0]


def tokens(images: Tensor) -> Tensor:
    """Read the middle of digits as 20 tokens out of 16, `(B, 20)`, int64."""
    return (images.flatten(1)[:, 300:320] * 15).long()


def one_vector(gradients: dict[str, Tensor]) -> Tensor:
    """Join gradients `{name: (B, *shape)}` to `(B, P)`, whatever their order of names."""
    return torch.cat([gradients[name].flatten(1) for name in sorted(gradients)], dim=1)
