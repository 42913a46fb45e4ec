"""What all steps of a private training guarantee together, as Opacus' accountants say."""

import math
import warnings

import numpy as np

from helpers.transforms.numbers import check_count, is_real

ACCOUNTANTS = ("rdp", "prv")
_LARGEST_NOISE = 1e6
_PRECISION = 1e-4
"""How close, relative to it, a noise multiplier is to the smallest that does."""
_MUCH = 2.0
"""From this noise on, moments are integrated: the sums of Opacus take longer the more there is."""
_GRID = 2**23
"""How many points of a grid take some ten seconds."""


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
        ValueError: An argument is out of its range, the accountant is unknown, or `"prv"` would
            take long.

    Example:
        >>> round(epsilon(1.0, rate=0.01, steps=1000, delta=1e-5), 2)
        2.1
    """
    check_noise(noise_multiplier)
    _check_budget(rate, steps, delta, accountant)
    return _spent(float(noise_multiplier), float(rate), int(steps), float(delta), accountant)


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
    return _search(float(epsilon), float(rate), int(steps), float(delta), accountant)


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
    high = 1.0
    if accountant == "prv":  # slow with little noise, it begins near what no subsampling would take
        high = max(1.0, rate * math.sqrt(2 * steps * math.log(1.25 / delta)) / epsilon)
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
    by = _by_divergences if accountant == "rdp" else _by_losses
    with np.errstate(divide="ignore"):
        # Below 0 is what a large delta allows at epsilon 0.
        return max(0.0, float(by(noise_multiplier, rate, steps, delta)))


def _by_divergences(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Return the smallest epsilon over the orders of Opacus."""
    from opacus.accountants import RDPAccountant  # brings all of Opacus, for seconds
    from opacus.accountants.analysis import rdp

    orders = np.array(RDPAccountant.DEFAULT_ALPHAS)
    if noise_multiplier < _MUCH or rate == 1:
        options = {"q": rate, "noise_multiplier": noise_multiplier, "orders": orders}
        divergences = rdp.compute_rdp(steps=steps, **options)
    else:
        divergences = steps * _divergences(noise_multiplier, rate, orders)
    with warnings.catch_warnings():
        # That larger orders would be tighter: the bound holds without them.
        warnings.filterwarnings("ignore", "Optimal order is the")
        return rdp.get_privacy_spent(orders=orders, rdp=divergences, delta=delta)[0]


def _divergences(noise_multiplier: float, rate: float, orders: np.ndarray) -> np.ndarray:
    """Integrate the moments of Mironov, Talwar and Zhang (Section 3.3).

    The trapezoidal rule is exact to rounding for such functions.
    """
    x = np.arange(-40, 40 + orders.max() / noise_multiplier, 0.01)
    density = -(x**2) / 2 + math.log(0.01 / math.sqrt(2 * math.pi))
    ratio = np.log1p(rate * np.expm1(x / noise_multiplier - 1 / (2 * noise_multiplier**2)))
    terms = density + orders[:, None] * ratio
    most = terms.max(1)
    moments = most + np.log(np.exp(terms - most[:, None]).sum(1))
    return np.maximum(moments, 0) / (orders - 1)


def _by_losses(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Do what Opacus' PRV accountant does, on a grid that is bounded by the divergences above."""
    from opacus.accountants.analysis import prv

    slack, tail = 0.01, delta / 1000  # of epsilon and of delta, as in Opacus
    largest = _by_divergences(noise_multiplier, rate, steps, tail / 4)
    largest = max(largest, _by_divergences(noise_multiplier, rate, 1, tail / (8 * steps)), slack)
    mesh = slack / math.sqrt(steps * math.log(12 / tail) / 2)
    if largest / mesh > _GRID:
        raise ValueError(
            f"the accountant 'prv' would take long for an epsilon near {largest:.3g} after "
            f"{steps:,} steps: take 'rdp', or more noise"
        )
    domain = prv.Domain.create_aligned(-largest - 3, largest + 3, mesh)
    loss = prv.PoissonSubsampledGaussianPRV(rate, noise_multiplier)
    loss = prv.TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max)
    composed = prv.compose_heterogeneous([prv.discretize(loss, domain)], [steps])
    try:
        return composed.compute_epsilon(delta, tail, slack)[2]
    except RuntimeError as error:
        if "Cannot compute epsilon" not in str(error):
            raise
        return 0.0  # delta is so large that it allows everything


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
            f"delta = {delta:g} is not below 1/n where batches hold a sample or more on average, "
            f"since then 1/n is at most the rate, {rate:g}: such a guarantee is kept by publishing "
            "one sample in full, chosen at random",
            stacklevel=3,
        )
