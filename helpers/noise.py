"""The gradient noise scale: the batch size up to which larger batches pay off.

With G the mean and Sigma the covariance matrix of the samples' gradients, the mean gradient of a
batch of B has noise tr(Sigma) / B around G. The scale is the B at which this equals |G|^2: B_simple
of McCandlish et al. (2018), "An Empirical Model of Large-Batch Training", arXiv:1812.06162.
Lesson 9 derives the estimate, and says what it predicts.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from helpers import gradients, norms
from helpers.numbers import in_float64
from helpers.transforms import batches
from helpers.transforms.batches import Batch, Tree

LossFn = Callable[[Any, Any], Tensor]
Tensors = dict[str, Tensor]

_CHUNK = 64  # samples at a time
_NEAR = 1e-2  # below this share of noise in the squares, rounding of the norms would show


@dataclass(frozen=True)
class NoiseScale:
    """Estimates from one batch.

    Attributes:
        noise: The trace of the covariance of the samples' gradients, with the divisor B - 1.
        signal: The squared norm of the batch gradient minus noise / B, an unbiased estimate of
            |G|^2. In a small batch it may be negative.
    """

    noise: float
    signal: float

    @property
    def scale(self) -> float:
        """The ratio, in samples, or infinity if the signal is at most 0."""
        # The ratio is biased: over several batches, average noise and signal first.
        return math.inf if self.signal <= 0 else self.noise / self.signal


def noise_scale(model: nn.Module, loss_fn: LossFn, data: Tree, targets: Tree = None) -> NoiseScale:
    """Estimate the gradient noise scale from the norms of the samples' gradients.

    The B gradients are never in memory at once: it uses their norms (`helpers.norms`) and their
    sum. Only if they are nearly equal does it compute them, 64 at a time.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a pytree of such tensors, B at least 2, a random sample.
        targets: Likewise; `None` where the loss needs none.

    Returns:
        Noise, signal and their ratio, for the parameters with `requires_grad` together.

    Raises:
        TypeError: `model` is not a module, `data` or `targets` is not a pytree of tensors, or
            `loss_fn` is a class.
        ValueError: There are fewer than 2 samples, a gradient or their sum is not finite, or one
            of the refusals of `func_gradients`.

    Example:
        >>> import torch
        >>> model = nn.Linear(1, 1, bias=False)  # predicts w, and w is 0
        >>> _ = nn.init.zeros_(model.weight)
        >>> data, targets = torch.ones(2, 1), torch.tensor([[-1.0], [-2.0]])
        >>> estimate = noise_scale(model, nn.functional.mse_loss, data, targets)  # gradients 2, 4
        >>> estimate  # their variance is 2, their mean 3, and 3^2 - 2 / 2 = 8
        NoiseScale(noise=2.0, signal=8.0)
    """
    sample_norms = norms.gradient_norms(model, loss_fn, data, targets, chunk_size=_CHUNK)
    sample_norms = in_float64(sample_norms)
    size = len(sample_norms)
    if size < 2:
        raise ValueError(f"data must hold at least 2 samples, got {size}")
    no_limit = sys.float_info.max  # which clips no gradient
    total = norms.clipped_sum(model, loss_fn, data, targets, no_limit, chunk_size=_CHUNK)
    means = {name: tensor / size for name, tensor in total.items()}
    measured = _squared_norm(means)
    if not (sample_norms.isfinite().all() and math.isfinite(measured)):
        raise ValueError("the gradients, and their squares in float32, must be finite")

    # The sum over samples of |g - mean|^2 is the sum of |g|^2, less B |mean|^2.
    squares = sample_norms.square().sum().item()
    spread = squares - size * measured
    if spread < _NEAR * squares:  # a small difference of large numbers, so mostly rounding
        batch = batches.take(model, data=data, targets=targets)
        spread = _spread(model, loss_fn, batch, total)
    noise = spread / (size - 1)
    return NoiseScale(noise, measured - noise / size)


def _spread(model: nn.Module, loss_fn: LossFn, batch: Batch, total: Tensors) -> float:
    """Sum |g - mean|^2 over the samples' gradients g, which add up to `total`, from themselves."""
    # The corrected two-pass algorithm of Chan et al. (1983): the mean was rounded, so that the
    # differences do not add up to zero, and what their sum shows is taken off again.
    size, spread = len(batch), 0.0
    sums: Tensors = {}
    for start in range(0, size, _CHUNK):
        chunk = batch[start : start + _CHUNK]
        for name, sample_grads in gradients.func_gradients(model, loss_fn, chunk).items():
            away = in_float64(sample_grads) - in_float64(total[name]) / size
            spread += away.abs().square().sum().item()
            sums[name] = sums.get(name, 0) + away.sum(0)
    spread -= _squared_norm(sums) / size
    return max(0.0, spread)  # rounding may make it negative for equal gradients


def _squared_norm(tensors: Tensors) -> float:
    """Sum the squares of all entries, in float64; of a complex one, those of both its parts."""
    squares = 0.0
    for tensor in tensors.values():
        squares += in_float64(tensor.abs()).square().sum().item()
    return squares
