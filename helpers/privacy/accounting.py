"""The joint guarantee of all steps of private training, from Opacus' accountants."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from helpers.numbers import check_count, is_real

ACCOUNTANTS = ("rdp", "prv")
_LARGEST_NOISE = 1e6  # as in Opacus
_GRID = 2**24  # points of half a grid, which take half a minute and some gigabytes


def epsilon(
    noise_multiplier: float, rate: float, steps: int, delta: float, *, accountant: str = "rdp"
) -> float:
    """Compute the epsilon that all steps of private training guarantee together.

    Args:
        noise_multiplier: The noise's standard deviation as a multiple of the clipping norm.
        rate: The probability with which a sample is in a batch, drawn as `poisson_batches` does.
        steps: The number of steps.
        delta: Added to `exp(epsilon)` times a probability: far below 1/n for n samples. A `delta`
            of `rate` or more causes a warning.
        accountant: `"rdp"`, Renyi differential privacy (Mironov, Talwar and Zhang 2019,
            https://arxiv.org/abs/1908.10530), or `"prv"`, tighter and slower (Gopi, Lee and
            Wutschitz 2021, https://arxiv.org/abs/2106.02848), at most 0.02 above the exact value.

    Returns:
        Epsilon; infinity without noise.

    Raises:
        ValueError: An argument is out of range, or `"prv"` would be slow.

    Example:
        >>> round(epsilon(1.0, rate=0.01, steps=1000, delta=1e-5), 2)
        2.1
    """
    check_noise(noise_multiplier)
    _check_budget(rate, steps, delta, accountant)
    if noise_multiplier == 0:
        return math.inf
    noise_multiplier, rate, delta = float(noise_multiplier), float(rate), float(delta)
    if accountant == "prv":
        _check_grid(noise_multiplier, rate, int(steps), delta)
    return _spent((noise_multiplier, rate, int(steps)), delta, accountant)


def noise_multiplier_for(
    epsilon: float, rate: float, steps: int, delta: float, *, accountant: str = "rdp"
) -> float:
    """Search for the smallest noise multiplier with which training guarantees `epsilon`.

    Args:
        epsilon: The target guarantee, above 0.
        rate: As in `epsilon`.
        steps: The number of steps.
        delta: As in `epsilon`.
        accountant: `"rdp"` or `"prv"`.

    Returns:
        A noise multiplier that guarantees at most `epsilon`, and at least 0.9999 times as much.

    Raises:
        ValueError: An argument is out of range, no noise is enough for this accountant, or `"prv"`
            would take long.

    Example:
        >>> round(noise_multiplier_for(2.0, rate=0.01, steps=1000, delta=1e-5), 2)
        1.02
    """
    if not is_real(epsilon) or not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a finite number above 0, got {epsilon!r}")
    _check_budget(rate, steps, delta, accountant)
    return _smallest_noise(float(epsilon), float(rate), int(steps), float(delta), accountant)


def check_rate(rate: float) -> None:
    """Raise ValueError unless a rate is above 0 and at most 1."""
    if not is_real(rate) or not 0 < rate <= 1:
        raise ValueError(f"rate must be above 0 and at most 1, got {rate!r}")


def check_noise(noise_multiplier: float) -> None:
    """Raise ValueError unless a noise multiplier is finite, and not negative."""
    if not is_real(noise_multiplier) or not 0 <= noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier must be finite, at least 0, got {noise_multiplier!r}")


def _spent(setting: tuple[float, float, int], delta: float, accountant: str) -> float:
    """Ask Opacus for the epsilon of (noise multiplier, rate, steps)."""
    from opacus.accountants import create_accountant  # brings all of Opacus, for seconds

    account = create_accountant(accountant)
    account.history = [setting]
    try:
        with _quiet():
            return max(0.0, float(account.get_epsilon(delta=delta)))
    except RuntimeError as error:
        if "Cannot compute epsilon" not in str(error):
            raise
        return 0.0  # delta is so large that it allows everything


def _smallest_noise(
    epsilon: float, rate: float, steps: int, delta: float, accountant: str
) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    # Even one step with the largest noise costs a little, as far as an accountant can tell.
    if epsilon <= _spent((_LARGEST_NOISE, 1.0, 1), delta, accountant):
        least = f"no epsilon as small as {epsilon:g} at delta = {delta:g}, whatever the noise"
        raise ValueError(f"the accountant {accountant!r} promises {least}: take a larger one")
    if accountant == "prv":
        # The less noise, the larger the grid, and the search starts with half of what "rdp" needs.
        noise_multiplier = _smallest_noise(max(epsilon, 1.0), rate, steps, delta, "rdp")
        _check_grid(noise_multiplier / 2, rate, steps, delta)
    with _quiet():
        return get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=rate,
            steps=steps,
            accountant=accountant,
            epsilon_tolerance=epsilon * 1e-4,
        )


def _check_grid(noise_multiplier: float, rate: float, steps: int, delta: float) -> None:
    """Raise ValueError if Opacus' PRV accountant would need too large a grid."""
    from opacus.accountants.analysis import prv

    # The errors of epsilon and of delta that Opacus allows.
    epsilon_error, delta_error = 0.01, delta / 1000
    loss = prv.PoissonSubsampledGaussianPRV(rate, noise_multiplier)
    with _quiet():
        largest = prv.compute_safe_domain_size([loss], [steps], epsilon_error, delta_error)
    # The grid reaches to `largest`; over the steps, the errors of its points add up.
    spacing = epsilon_error / math.sqrt(steps * math.log(12 / delta_error) / 2)
    if largest / spacing > _GRID:
        raise ValueError(
            f"the accountant 'prv' would be slow for an epsilon near {largest:.3g} after "
            f"{steps:,} steps: take 'rdp', or more noise"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence log(0) and the advice to try larger orders: the bound holds anyway."""
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the")
        yield


def _check_budget(rate: float, steps: int, delta: float, accountant: str) -> None:
    check_rate(rate)
    check_count("steps", steps)
    if not is_real(delta) or not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta!r}")
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant must be 'rdp' or 'prv', got {accountant!r}")
    rate, delta = float(rate), float(delta)
    if delta >= rate:
        warnings.warn(
            f"delta {delta:g} >= rate {rate:g}: publishing one random sample is as private",
            stacklevel=3,
        )
