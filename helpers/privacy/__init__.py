"""Differentially private training: Poisson batches, a clipped sum with noise, the guarantee.

One step of DP-SGD (Abadi et al. 2016, https://arxiv.org/abs/1607.00133) draws each sample with the
same probability (`poisson_batches`), adds noise to the sum of the clipped gradients
(`private_sum`), and divides by the *expected* batch size, a constant chosen independently of the
data. `epsilon` computes, with Opacus' accountants, what all steps together guarantee for data sets
that differ by one added sample; `noise_multiplier_for` finds the noise for a target `epsilon`.
Lesson 8 writes the step, and an accountant in twenty lines.

Several processes draw the same batches from generators with one seed, each passes its share
`batch[rank::world_size]`, only the first adds noise, and `all_reduce` adds the sums. The noise is
from torch's generators, which can be predicted: for production use a cryptographic source.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from helpers import devices, norms
from helpers.numbers import check_count
from helpers.privacy import accounting
from helpers.privacy.accounting import ACCOUNTANTS, epsilon, noise_multiplier_for
from helpers.transforms.batches import Tree

__all__ = ["ACCOUNTANTS", "epsilon", "noise_multiplier_for", "poisson_batches", "private_sum"]


def poisson_batches(
    n: int, rate: float, steps: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Draw a batch for each step; it includes each sample independently with probability `rate`.

    Batches differ in size, and one may be empty. The accountants assume such batches; shuffled ones
    have a weaker guarantee.

    Args:
        n: The number of samples.
        rate: The probability with which a sample is in a batch, above 0 and at most 1. Choose it
            without a look at the data: `n` is private, too.
        steps: The number of batches.
        generator: The source of randomness, drawn from step by step.

    Returns:
        An iterator over `steps` tensors of ascending indices, `(size of the batch,)`, int64, on the
        generator's device.

    Raises:
        ValueError: `rate` is out of range, or `n` or `steps` is not a positive integer.
    """
    check_count("n", n)
    accounting.check_rate(rate)
    check_count("steps", steps)
    # A float32 from torch.rand is a multiple of 2**-24: too coarse for a rate of 1e-6.
    has_float64 = devices.for_float64(generator.device) == generator.device
    dtype = torch.float64 if has_float64 else torch.float32

    # Within, since a generator function would check its arguments only at the first batch.
    def draw() -> Iterator[Tensor]:
        for _ in range(steps):
            uniform = torch.rand(n, generator=generator, device=generator.device, dtype=dtype)
            chosen = uniform < float(rate)  # (n,)
            yield chosen.nonzero().squeeze(1)

    return draw()


@torch.inference_mode(False)
def private_sum(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    data: Tree,
    targets: Tree = None,
    *,
    limit: float,
    noise_multiplier: float,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    chunk_size: int | Literal["auto"] | None = 64,
    randomness: str = "error",
) -> dict[str, Tensor]:
    """Compute the sum of the samples' clipped gradients, plus Gaussian noise.

    The noise has standard deviation `noise_multiplier * limit` in each entry and is drawn once, no
    matter how many chunks there are. Divide the result by the expected batch size, not by the size
    of this batch. For an empty batch the result is the noise. Sum and noise are in float32 or
    wider, because rounding in bfloat16 swallows noise; round after the division if you like.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`, with real parameters. The
            guarantee does not cover private data that its buffers may hold.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a pytree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        limit: The clipping norm, over all parameters together.
        noise_multiplier: The noise's standard deviation as a multiple of `limit`; 0 for none.
        mask: `(B,)`, boolean, as in `helpers.norms.clipped_sum`: which samples count.
        generator: The source of the noise; `None` means torch's own stream of the device.
        chunk_size: As in `helpers.norms.clipped_sum`.
        randomness: `"different"` for dropout and other draws of each sample, as in `clipped_sum`.

    Returns:
        `{name: parameter.shape}`, detached, in float32 or wider, for the parameters with
        `requires_grad`.

    Raises:
        TypeError: `data` or `targets` is not a pytree of tensors.
        ValueError: One of the refusals of `helpers.norms.clipped_sum`, BatchNorm in training mode
            and a `limit` out of range among them; `noise_multiplier` is negative or not finite, or
            the noise too small or too large for the dtype of the sum; a parameter is complex, or
            not on the generator's device.

    Example:
        >>> model, data, targets = nn.Linear(2, 1, bias=False), torch.eye(2), torch.ones(2, 1)
        >>> _ = nn.init.zeros_(model.weight)
        >>> options = {"limit": 0.5, "noise_multiplier": 0.0}
        >>> private_sum(model, nn.functional.mse_loss, data, targets, **options)["weight"]
        tensor([[-0.5000, -0.5000]])
    """
    accounting.check_noise(noise_multiplier)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.is_complex():
            # In torch's complex noise, each part has half the variance.
            raise ValueError(f"{name} is complex: give its real and imaginary parts as parameters")
        if generator is not None:
            _check_device(generator, name, parameter)
    sums = norms.clipped_sum(
        model,
        loss_fn,
        data,
        targets,
        limit,
        mask=mask,
        chunk_size=chunk_size,
        randomness=randomness,
    )
    deviation = float(noise_multiplier) * float(limit)
    for total in sums.values():
        if noise_multiplier:
            _check_deviation(deviation, total.dtype)
        noise = torch.normal(
            0.0,
            deviation,
            total.shape,
            generator=generator,
            device=total.device,
            dtype=total.dtype,
        )
        total += noise
    return sums


def _check_deviation(deviation: float, dtype: torch.dtype) -> None:
    """Raise ValueError unless noise of this size keeps its digits in a dtype."""
    info = torch.finfo(dtype)
    # Smaller noise would be rounded coarsely, and larger noise could overflow.
    if not info.tiny / info.eps < deviation < info.max * info.eps:
        raise ValueError(
            f"noise of standard deviation {deviation:g} is too small or too large for "
            f"{dtype}: scale the loss and the limit"
        )


def _check_device(generator: torch.Generator, name: str, parameter: Tensor) -> None:
    """Raise ValueError unless a generator can draw noise for a parameter."""
    device = generator.device
    # `torch.Generator("cuda")` has no index: it draws for the current device of its kind.
    if device.type != parameter.device.type or device.index not in (None, parameter.device.index):
        raise ValueError(
            f"generator is on {device} and {name} on {parameter.device}: "
            f"torch.Generator({str(parameter.device)!r}) makes one there"
        )
