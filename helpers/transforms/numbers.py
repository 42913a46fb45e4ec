"""What counts and real numbers have to be, and the precision in which numbers are added up."""

from numbers import Integral, Real

import torch


def check_count(name: str, count: int, least: int = 1) -> None:
    """Raise ValueError unless a count is a whole number, at least `least`, and no truth value."""
    if not isinstance(count, Integral) or isinstance(count, bool) or count < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {count!r}")


def is_real(value: object) -> bool:
    """Return whether a value is a real number, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums, float32 at least: in bfloat16, 256 + 1 is 256."""
    return torch.promote_types(dtype, torch.float32)
