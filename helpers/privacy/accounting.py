"""What all steps of a private training guarantee together, as Opacus' accountants say."""

import math
import warnings

import numpy as np

from helpers.transforms.numbers import check_count, is_real

ACCOUNTANTS = ("rdp", "prv")
_LARGEST_NOISE = 1e6
_PRECISION = 1e-4
"""How close, relative to it, a noise multiplier is to the smallest that does."""


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
    check_noise(noise_multiplier)
    _check_budget(rate, steps, delta, accountant)
    return _spent(noise_multiplier, rate, steps, delta, accountant)


def noise_multiplier_for(
    epsilon: float, rate: float, steps: int, delta: float, *, accountant: str = "rdp"
) -> float:
    """Search for the smallest noise multiplier with which training guarantees `epsilon`.

    Args:
        epsilon: The wanted guarantee, above 0.
        rate: As in `epsilon`, like all that follows.
        steps: How many steps there are.
        delta: The probability that the guarantee may fail by more.
        accountant: `"rdp"` or `"prv"`.

    Returns:
        A noise multiplier that guarantees `epsilon`, at most a ten-thousandth above the smallest.

    Raises:
        ValueError: An argument is out of its range, or no noise is enough for this accountant,
            whose bounds end above zero.

    Example:
        >>> round(noise_multiplier_for(2.0, rate=0.01, steps=1000, delta=1e-5), 2)
        1.02
    """
    if not is_real(epsilon) or not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number above 0, got {epsilon!r}")
    _check_budget(rate, steps, delta, accountant)
    return _search(epsilon, rate, steps, delta, accountant)


def check_rate(rate: float) -> None:
    """Raise ValueError unless a rate is above 0 and at most 1."""
    if not is_real(rate) or not 0 < rate <= 1:
        raise ValueError(f"rate must be above 0 and at most 1, got {rate!r}")


def check_noise(noise_multiplier: float) -> None:
    """Raise ValueError unless a noise multiplier is finite, and not negative."""
    if not is_real(noise_multiplier) or not 0 <= noise_multiplier < math.inf:
        raise ValueError(
            f"noise_multiplier must be a finite number, at least 0, got {noise_multiplier!r}"
        )


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
    check_rate(rate)
    check_count("steps", steps)
    if not is_real(delta) or not 0 < delta < 1:
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
