"""What rates, counts and noise multipliers have to be."""

import math
from numbers import Real


def check_rate(rate: float) -> None:
    """Check that a rate is above 0 and at most 1.

    Raises:
        ValueError: It is not.
    """
    if not is_real(rate) or not 0 < rate <= 1:
        raise ValueError(f"rate must be above 0 and at most 1, got {rate!r}")


def check_count(name: str, count: int) -> None:
    """Check that a count is a whole number, at least 1.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"{name} must be a whole number, at least 1, got {count!r}")


def check_noise(noise_multiplier: float) -> None:
    """Check that a noise multiplier is finite, and not negative.

    Raises:
        ValueError: It is not.
    """
    if not is_real(noise_multiplier) or not 0 <= noise_multiplier < math.inf:
        raise ValueError(
            f"noise_multiplier must be a finite number, at least 0, got {noise_multiplier!r}"
        )


def is_real(value: object) -> bool:
    """Say whether a value is a number, and not `True` or `False`."""
    return isinstance(value, Real) and not isinstance(value, bool)
