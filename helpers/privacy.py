"""Private training: batches drawn by chance, a clipped sum with noise, and what it guarantees.

One step of DP-SGD (Abadi et al. 2016, https://arxiv.org/abs/1607.00133) draws each sample with the
same probability (`poisson_batches`), adds noise to the sum of the clipped gradients
(`private_sum`), and divides by the *expected* size of a batch, `rate * n`. What all steps together
guarantee say Opacus' accountants (`epsilon`); which noise a wanted guarantee needs, a search over
them (`noise_multiplier_for`).

Neighbours are data sets of which one has a sample more. The noise comes from torch's generators:
right for studies; against somebody who can predict a Mersenne Twister it takes a cryptographic
source, and Opacus' secure mode.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from numbers import Real

import numpy as np
import torch
from torch import Tensor, nn

from helpers import norms

ACCOUNTANTS = ("rdp", "prv")
_LARGEST_NOISE = 1e6
_PRECISION = 1e-4
"""How close, relative to it, a noise multiplier is to the smallest that does."""


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
        order, on the device of the generator.

    Raises:
        TypeError: `generator` is no `torch.Generator`.
        ValueError: `rate` is out of range, or `n` or `steps` is no whole number above 0.
    """
    _check_count("n", n)
    _check_rate(rate)
    _check_count("steps", steps)
    _check_generator(generator)
    # A float32 from torch.rand is a multiple of 2**-24: too coarse for a rate of 1e-6.
    dtype = torch.float32 if generator.device.type == "mps" else torch.float64
    options = {"generator": generator, "device": generator.device, "dtype": dtype}
    return ((torch.rand(n, **options) < rate).nonzero().squeeze(1) for _ in range(steps))


@torch.inference_mode(False)
def private_sum(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    data: Tensor,
    targets: Tensor,
    *,
    limit: float,
    noise_multiplier: float,
    generator: torch.Generator | None = None,
    chunk_size: int | str | None = 64,
) -> dict[str, Tensor]:
    """Compute the sum of the samples' clipped gradients, plus Gaussian noise.

    The noise has the standard deviation `noise_multiplier * limit` in each entry and is drawn once,
    however many chunks there are. Divide the result by the expected size of a batch, not by the
    size of this one. For an empty batch the result is the noise.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`, with real parameters. Its
            buffers are not protected: what they know of private data is outside of the guarantee.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`.
        targets: `(B, ...)`.
        limit: The largest norm, over all parameters together, that a gradient keeps.
        noise_multiplier: The noise's standard deviation as a multiple of `limit`; 0 for none.
        generator: Where the noise comes from; `None` means torch's own stream of the device.
        chunk_size: As in `helpers.norms.clipped_sum`.

    Returns:
        `{name: parameter.shape}`, detached, for the parameters with `requires_grad`.

    Raises:
        TypeError: `data` or `targets` is no tensor, or `generator` no `torch.Generator`.
        ValueError: One of the refusals of `helpers.norms.clipped_sum`, BatchNorm in training mode
            and a `limit` out of range among them; `noise_multiplier` is negative or not finite; a
            parameter is complex, or not on the generator's device.

    Example:
        >>> model, data, targets = nn.Linear(2, 1, bias=False), torch.eye(2), torch.ones(2, 1)
        >>> _ = nn.init.zeros_(model.weight)
        >>> options = {"limit": 0.5, "noise_multiplier": 0.0}
        >>> private_sum(model, nn.functional.mse_loss, data, targets, **options)["weight"]
        tensor([[-0.5000, -0.5000]])
    """
    _check_noise(noise_multiplier)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            _check_place(name, parameter, generator)
    result = norms.clipped_sum(model, loss_fn, data, targets, limit, chunk_size=chunk_size)
    for total in result.values():
        options = {"generator": generator, "device": total.device, "dtype": total.dtype}
        total += torch.normal(0.0, noise_multiplier * limit, total.shape, **options)
    return result


def epsilon(
    noise_multiplier: float, rate: float, steps: int, delta: float, *, accountant: str = "rdp"
) -> float:
    """Compute the epsilon that all steps of a private training guarantee together.

    Args:
        noise_multiplier: The noise's standard deviation as a multiple of the clipping limit.
        rate: The probability with which each sample is in a batch, drawn as `poisson_batches` does.
        steps: How many steps there are.
        delta: The probability that the guarantee may fail by more; below 1/n for n samples. `n` is
            not known here; where `delta` reaches `rate`, a warning says that it is too large.
        accountant: `"rdp"`, Renyi differential privacy (Mironov, Talwar and Zhang 2019,
            https://arxiv.org/abs/1908.10530), or `"prv"`, tighter and slower (Gopi, Lee and
            Wutschitz 2021, https://arxiv.org/abs/2106.02848), as Opacus computes them. The second
            is an upper bound, at most 0.02 above the exact value.

    Returns:
        Epsilon; infinity without noise.

    Raises:
        ValueError: An argument is out of its range, or the accountant is unknown.

    Example:
        >>> round(epsilon(1.0, rate=0.01, steps=1000, delta=1e-5), 2)
        2.1
    """
    _check_noise(noise_multiplier)
    _check_budget(rate, steps, delta, accountant)
    return _spent(noise_multiplier, rate, steps, delta, accountant)


def noise_multiplier_for(
    epsilon: float, rate: float, steps: int, delta: float, *, accountant: str = "rdp"
) -> float:
    """Search for the smallest noise multiplier with which training guarantees `epsilon`.

    Args:
        epsilon: The wanted guarantee, above 0.
        rate: As in `epsilon`.
        steps: As in `epsilon`.
        delta: As in `epsilon`.
        accountant: As in `epsilon`.

    Returns:
        A noise multiplier that guarantees `epsilon`, at most a ten-thousandth above the smallest.

    Raises:
        ValueError: An argument is out of its range, or no noise is enough for this accountant,
            whose bounds end above zero.

    Example:
        >>> round(noise_multiplier_for(2.0, rate=0.01, steps=1000, delta=1e-5), 2)
        1.02
    """
    if not _is_real(epsilon) or not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number above 0, got {epsilon!r}")
    _check_budget(rate, steps, delta, accountant)
    return _search(epsilon, rate, steps, delta, accountant)


def _search(epsilon: float, rate: float, steps: int, delta: float, accountant: str) -> float:
    """Enclose the noise multiplier between two that are near each other."""
    # The slow accountant begins near its answer: with tiny noise it takes minutes.
    high = 1.0 if accountant == "rdp" else _search(epsilon, rate, steps, delta, "rdp")
    while _spent(high, rate, steps, delta, accountant) > epsilon:
        high *= 1.5
        if high > _LARGEST_NOISE:
            raise ValueError(
                f"the accountant {accountant!r} promises no epsilon as small as {epsilon:g} at "
                f"delta = {delta:g}, with whatever noise: take a larger epsilon or delta"
            )
    low = high / 1.5
    while _spent(low, rate, steps, delta, accountant) <= epsilon:
        low, high = low / 1.5, low
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        if _spent(middle, rate, steps, delta, accountant) > epsilon:
            low = middle
        else:
            high = middle
    return high


def _spent(
    noise_multiplier: float, rate: float, steps: int, delta: float, accountant: str
) -> float:
    """Ask Opacus."""
    if noise_multiplier == 0:
        return math.inf
    from opacus.accountants import create_accountant  # brings all of Opacus, for seconds

    account = create_accountant(accountant)
    account.history = [(noise_multiplier, rate, steps)]
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        # That larger orders would be tighter: the bound holds without them.
        warnings.filterwarnings("ignore", "Optimal order is the")
        return float(account.get_epsilon(delta=delta))


def _check_budget(rate: float, steps: int, delta: float, accountant: str) -> None:
    _check_rate(rate)
    _check_count("steps", steps)
    if not _is_real(delta) or not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta!r}")
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant must be 'rdp' or 'prv', got {accountant!r}")
    if delta >= rate:
        warnings.warn(
            f"delta = {delta:g} is not below 1/n where batches hold a sample or more on average, "
            f"since then 1/n is at most the rate, {rate:g}: such a guarantee is kept by publishing "
            "one sample in full, chosen at random",
            stacklevel=3,
        )


def _check_rate(rate: float) -> None:
    if not _is_real(rate) or not 0 < rate <= 1:
        raise ValueError(f"rate must be above 0 and at most 1, got {rate!r}")


def _check_count(name: str, count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"{name} must be a whole number, at least 1, got {count!r}")


def _check_noise(noise_multiplier: float) -> None:
    if not _is_real(noise_multiplier) or not 0 <= noise_multiplier < math.inf:
        raise ValueError(
            f"noise_multiplier must be a finite number, at least 0, got {noise_multiplier!r}"
        )


def _check_generator(generator: torch.Generator) -> None:
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")


def _check_place(name: str, parameter: Tensor, generator: torch.Generator | None) -> None:
    if parameter.is_complex():
        raise ValueError(
            f"{name} is complex, and torch's complex noise has half of its variance in each part: "
            "give its real and imaginary parts as parameters"
        )
    if generator is None:
        return
    _check_generator(generator)
    if generator.device != parameter.device:
        raise ValueError(
            f"generator is on {generator.device} and {name} on {parameter.device}: "
            f"torch.Generator({str(parameter.device)!r}) makes one there"
        )


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
