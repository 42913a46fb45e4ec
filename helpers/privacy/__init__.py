"""Private training: batches drawn by chance, a clipped sum with noise, and what it guarantees.

One step of DP-SGD (Abadi et al. 2016, https://arxiv.org/abs/1607.00133) draws each sample with the
same probability (`poisson_batches`), adds noise to the sum of the clipped gradients
(`private_sum`), and divides by the *expected* size of a batch, `rate * n`. What all steps together
guarantee say Opacus' accountants (`epsilon`); `noise_multiplier_for` searches over them.

Several processes give what one gives if they draw the same batches, from generators of one seed,
each takes its share of a batch, and the first alone adds the noise; `all_reduce` adds the sums:

    share = batch[dist.get_rank() :: dist.get_world_size()]
    noise = {"noise_multiplier": noise_multiplier if dist.get_rank() == 0 else 0.0}
    total = private_sum(model, loss_fn, data[share], targets[share], limit=limit, **noise)

Neighbours are data sets of which one has a sample more. The noise comes from torch's generators:
right for studies; against somebody who can predict them it takes a cryptographic source.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from helpers import norms
from helpers.privacy import accounting
from helpers.privacy.accounting import ACCOUNTANTS, epsilon, noise_multiplier_for
from helpers.transforms.batches import Tree
from helpers.transforms.numbers import check_count

__all__ = ["ACCOUNTANTS", "epsilon", "noise_multiplier_for", "poisson_batches", "private_sum"]


def poisson_batches(
    n: int, rate: float, steps: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Draw a batch for each step: every sample is in it with the probability `rate`, by itself.

    The sizes of the batches differ, and one may be empty. That is what accountants of subsampling
    assume; shuffled batches of one size have another guarantee.

    Args:
        n: How many samples there are.
        rate: The probability of a sample to be in a batch, above 0 and at most 1.
        steps: How many batches to draw.
        generator: Where the chance comes from. Steps draw from it one after the other.

    Returns:
        An iterator over `steps` tensors of indices, `(size of the batch,)`, int64, in ascending
        order, on the device of the generator. From generators of one seed, the same in each
        process.

    Raises:
        ValueError: `rate` is out of range, or `n` or `steps` is no whole number above 0.
    """
    check_count("n", n)
    accounting.check_rate(rate)
    rate = float(rate)
    check_count("steps", steps)
    # A float32 from torch.rand is a multiple of 2**-24: too coarse for a rate of 1e-6.
    dtype = torch.float32 if generator.device.type == "mps" else torch.float64
    options = {"generator": generator, "device": generator.device, "dtype": dtype}
    return ((torch.rand(n, **options) < rate).nonzero().squeeze(1) for _ in range(steps))


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
    chunk_size: int | str | None = 64,
) -> dict[str, Tensor]:
    """Compute the sum of the samples' clipped gradients, plus Gaussian noise.

    The noise has the standard deviation `noise_multiplier * limit` in each entry and is drawn once,
    however many chunks there are. Divide the result by the expected size of a batch, not by the
    size of this one. For an empty batch the result is the noise.

    The sum and the noise are in float32 or wider, whatever the parameters are: in bfloat16 a sum
    of 1,500 moves in steps of 8, which hides noise of 1 and shows a sample. Rounded to the dtype of
    the parameter after the division, the result is as private as before.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`, with real parameters. Its
            buffers are not protected: what they know of private data is outside of the guarantee.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a tree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        limit: The largest norm, over all parameters together, that a gradient keeps.
        noise_multiplier: The noise's standard deviation as a multiple of `limit`; 0 for none.
        mask: `(B,)`, boolean, as in `helpers.norms.clipped_sum`: which samples count.
        generator: Where the noise comes from; `None` means torch's own stream of the device.
        chunk_size: As in `helpers.norms.clipped_sum`.

    Returns:
        `{name: parameter.shape}`, detached, in float32 or wider, for the parameters with
        `requires_grad`.

    Raises:
        TypeError: `data` or `targets` is no tree of tensors.
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
    noise_multiplier = float(noise_multiplier)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise ValueError(
                f"{name} is complex, and torch's complex noise has half of its variance in each "
                "part: give its real and imaginary parts as parameters"
            )
        if parameter.requires_grad and generator and generator.device != parameter.device:
            raise ValueError(
                f"generator is on {generator.device} and {name} on {parameter.device}: "
                f"torch.Generator({str(parameter.device)!r}) makes one there"
            )
    options = {"mask": mask, "chunk_size": chunk_size}
    result = norms.clipped_sum(model, loss_fn, data, targets, limit, **options)
    deviation = noise_multiplier * float(limit)
    for total in result.values():
        info = torch.finfo(total.dtype)
        if noise_multiplier and not info.tiny / info.eps < deviation < info.max * info.eps:
            raise ValueError(
                f"noise of the standard deviation {deviation:g} is too small or too large for "
                f"{total.dtype}: scale the loss and the limit"
            )
        options = {"generator": generator, "device": total.device, "dtype": total.dtype}
        total += torch.normal(0.0, deviation, total.shape, **options)
    return result
