"""Checks of counts and real numbers, differences of tensors, and the dtype for sums."""

from numbers import Integral, Real
from typing import TypeGuard

import torch
from torch import Tensor

from helpers import devices


def check_count(name: str, count: int, least: int = 1, most: int | None = None) -> None:
    """Raise ValueError unless a count is an integer (not a bool), from `least` to `most`."""
    is_whole = isinstance(count, Integral) and not isinstance(count, bool)
    if is_whole and count >= least and (most is None or count <= most):
        return
    allowed = f", at least {least}" if most is None else f" from {least} to {most}"
    raise ValueError(f"{name} must be a whole number{allowed}, got {count!r}")


def is_real(value: object) -> TypeGuard[float]:
    """Return whether a value is a real number, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums, at least float32: in bfloat16, 256 + 1 is 256."""
    return torch.promote_types(dtype, torch.float32)


def in_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64 (complex128), on the CPU if its device has none (Apple's MPS)."""
    dtype = torch.promote_types(tensor.dtype, torch.float64)
    return tensor.to(devices.for_float64(tensor.device), dtype)


def differences(
    got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float | None = None
) -> dict[str, float]:
    """Compare gradients by name with the expected ones; NaN equals NaN.

    An error may reach `tolerance` times the parameter's largest finite entry or, for gradients that
    are only rounding, a tenth of that times the overall largest. `None` means the square root of
    the dtype's `eps`, and for that tenth at most `10 * eps`. Returns the errors above these limits.
    """
    sizes = {}  # the largest finite entry of each parameter
    for name, tensor in expected.items():
        finite = torch.nan_to_num(tensor.abs(), nan=0, posinf=0, neginf=0)
        sizes[name] = finite.max().item() if finite.numel() else 0.0
    largest = max(sizes.values(), default=0.0)

    errors = {}
    for name, tensor in expected.items():
        eps = torch.finfo(tensor.dtype).eps
        if tolerance is None:
            of_parameter = eps**0.5
            of_rounding = min(eps**0.5 / 10, 10 * eps)
        else:
            of_parameter = tolerance
            of_rounding = tolerance / 10
        limit = max(of_parameter * sizes[name], of_rounding * largest)
        error = largest_difference(got[name], tensor)
        is_within = error <= limit  # false for NaN
        if not is_within:
            errors[name] = error / sizes[name] if sizes[name] else error
    return errors


def largest_difference(got: Tensor, expected: Tensor) -> float:
    """Return the largest difference between two tensors of one shape; NaN equals NaN."""
    dtype = torch.promote_types(expected.dtype, torch.float64)  # of two complex ones, complex
    got = got.detach().to_dense().cpu().to(dtype)
    expected = expected.detach().to_dense().cpu().to(dtype)
    # Without equal entries: the difference of two infinite or NaN ones is NaN.
    differs = ~torch.isclose(got, expected, rtol=0, atol=0, equal_nan=True)
    if not differs.any():
        return 0.0
    return (got - expected)[differs].abs().max().item()
