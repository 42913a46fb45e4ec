"""Checks of counts and real numbers, and the dtype for sums."""

from numbers import Integral, Real

import torch


def check_count(name: str, count: int, least: int = 1) -> None:
    """Raise ValueError unless a count is an integer (not a bool), at least `least`."""
    if not isinstance(count, Integral) or isinstance(count, bool) or count < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {count!r}")


def is_real(value: object) -> bool:
    """Return whether a value is a real number, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums, at least float32: in bfloat16, 256 + 1 is 256."""
    return torch.promote_types(dtype, torch.float32)
