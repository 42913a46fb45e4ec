"""The gradient noise scale: how large a batch still pays, from the gradients of single samples.

The gradients of samples have a mean, the true gradient G, and a covariance matrix Sigma. The mean
of B of them has the noise tr(Sigma) / B around G. Where B is far below tr(Sigma) / |G|^2, noise is
most of what a batch gradient holds, and twice the batch is worth it; far above, it is not
(McCandlish, Kaplan, Amodei and the OpenAI Dota Team 2018, "An Empirical Model of Large-Batch
Training", arXiv:1812.06162, where the ratio is called B_simple).
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers import gradients, norms
from helpers.transforms import batches
from helpers.transforms.batches import Batch, Tree

_NEAR = 1e-2
"""Gradients are nearly equal where this share of their squares is not in their mean: rounding of
norms would show in the difference, and the distances themselves are taken."""


@dataclass(frozen=True)
class NoiseScale:
    """Estimates from one batch.

    Attributes:
        noise: The trace of the covariance of the samples' gradients, with the divisor B - 1.
        signal: The squared norm of the true gradient: that of the batch gradient, less noise / B,
            which is what the noise adds to it on average. Where the batch is too small to show
            the signal, it may come out below 0.
    """

    noise: float
    signal: float

    @property
    def scale(self) -> float:
        """Their ratio, in samples; infinite where the signal is not above 0.

        Noise and signal are right on average, their ratio is not: take the means of both over
        several batches first.
        """
        return math.inf if self.signal <= 0 else self.noise / self.signal


def noise_scale(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    data: Tree,
    targets: Tree = None,
    *,
    chunk_size: int = 64,
) -> NoiseScale:
    """Estimate the gradient noise scale from the norms of the samples' gradients.

    The B x P numbers of the gradients are never there at once: the norms come from
    `helpers.norms`, and the sum of the gradients has P numbers. Only where the gradients are nearly
    equal are they made, a chunk at a time.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a tree of such tensors, B at least 2, drawn from all that the estimate
            is about.
        targets: Likewise; `None` where the loss needs none.
        chunk_size: How many samples to take at a time. It bounds the memory.

    Returns:
        Noise, signal and their ratio, for the parameters with `requires_grad` together.

    Raises:
        TypeError: `data` or `targets` is no tree of tensors.
        ValueError: There are fewer than 2 samples, a gradient or their sum is not finite, or one
            of the refusals of `func_gradients`.

    Example:
        >>> import torch
        >>> model = nn.Linear(1, 1, bias=False)  # predicts w, and w is 0
        >>> _ = nn.init.zeros_(model.weight)
        >>> data, targets = torch.ones(2, 1), torch.tensor([[-1.0], [-2.0]])
        >>> found = noise_scale(model, nn.functional.mse_loss, data, targets)  # gradients 2 and 4
        >>> found  # their variance is 2, their mean 3, and 3^2 - 2 / 2 = 8
        NoiseScale(noise=2.0, signal=8.0)
        >>> found.scale
        0.25
    """
    options = {"chunk_size": chunk_size}
    own = norms.gradient_norms(model, loss_fn, data, targets, **options).double()
    size = len(own)
    if size < 2:
        raise ValueError(f"data must hold 2 samples at least, to differ, got {size}")
    # A limit that clips none of them.
    total = norms.clipped_sum(model, loss_fn, data, targets, sys.float_info.max, **options)
    measured = sum((t / size).abs().double().square().sum().item() for t in total.values())
    if not (own.isfinite().all() and math.isfinite(measured)):
        bad = size - int(own.isfinite().sum())
        got = f"those of {bad} of the {size} samples are not" if bad else "their sum is not"
        raise ValueError(
            f"the gradients, and their squared norms in float32, must be finite: {got}"
        )
    squares = own.square().sum().item()
    spread = squares - size * measured
    if spread < _NEAR * squares:
        means = {name: tensor.double() / size for name, tensor in total.items()}
        batch = batches.take(model, data=data, targets=targets)
        spread = _spread(model, loss_fn, batch, means, chunk_size)
    noise = spread / (size - 1)
    return NoiseScale(noise, measured - noise / size)


def _spread(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batch: Batch,
    means: dict[str, Tensor],
    chunk_size: int,
) -> float:
    """Add up the squared distances of the gradients from their mean, which is known roughly.

    The corrected two-pass algorithm (Chan, Golub and LeVeque 1983).
    """
    squares, rest = 0.0, {name: torch.zeros_like(mean) for name, mean in means.items()}
    for start in range(0, len(batch), chunk_size):
        chunk = batch[start : start + chunk_size]
        for name, rows in gradients.func_gradients(model, loss_fn, chunk).items():
            away = rows.double() - means[name]
            squares += away.abs().square().sum().item()
            rest[name] += away.sum(0)
    correction = sum(each.abs().square().sum().item() for each in rest.values()) / len(batch)
    return max(0.0, squares - correction)  # rounding may bring that of equal gradients below 0
