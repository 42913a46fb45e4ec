"""Compare two sets of per-sample gradients, in a table."""

from math import inf, isfinite

import numpy as np
import pandas as pd
import torch
from torch import Tensor

# Correct methods differ by rounding alone: a few times 1e-16 of the largest entry in float64 and
# 1e-7 in float32, more where long sums are added in another order. On the networks of the lessons
# 6e-15 and 1e-6 were measured; these leave a factor of 10 and more.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def table(
    got: dict[str, Tensor],
    expected: dict[str, Tensor],
    *,
    tolerance: float | None = None,
    batch_dims: int = 1,
) -> pd.DataFrame:
    """Compare two dictionaries of gradients by name, never by position.

    Args:
        got: `{name: (B, *shape)}`, the result to check.
        expected: `{name: (B, *shape)}`, the reference.
        tolerance: The largest error that counts as equal; `None` means that of the dtype of `got`,
            from `TOLERANCES`. It is relative, as in `largest_error`.
        batch_dims: How many dimensions precede a parameter's own: 1 for gradients `(B, *shape)`, 2
            for Jacobians `(B, Y, *shape)`.

    Returns:
        A row for each name of either: both shapes, the largest error (a bound where it is within
        the tolerance, so that it reads the same on every machine), and whether the two are equal.
    """
    # A reference that overflowed in one parameter says nothing of the others.
    scale = max(filter(isfinite, map(_largest, expected.values())), default=0.0)
    rows = {}
    for name in expected | got:
        tensor = got.get(name, expected.get(name))
        limit = TOLERANCES[tensor.dtype.to_real()] if tolerance is None else tolerance
        error = inf
        if name not in got or name not in expected:
            shown = "missing" if name not in got else "not expected"
        elif got[name].shape != expected[name].shape:
            shown = f"expected {tuple(expected[name].shape)}"
        else:
            error = largest_error(got[name], expected[name], scale=scale)
            bound = np.format_float_scientific(limit, trim="-", exp_digits=2)  # 1e-05, 2.5e-06
            shown = f"below {bound}" if error < limit else f"{error:.1e}"
        shape = tuple(tensor.shape)
        rows[name] = (shape[batch_dims:], shape, shown, isfinite(error) and error <= limit)
    columns = ["shape", "per-sample shape", "largest error", "equal"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("parameter")


def check(
    got: dict[str, Tensor], expected: dict[str, Tensor], **options: float | None
) -> pd.DataFrame:
    """Compare as `table` does, with its `options`, and raise if the two are not equal.

    Returns:
        The table, in which every verdict is then `True`.

    Raises:
        AssertionError: There is nothing to compare, a name is missing or not expected, a shape
            differs, or a value does, checked in this order. The message names the parameter.
    """
    result = table(got, expected, **options)
    if result.empty:
        raise AssertionError("there is nothing to compare")
    wrong = result["largest error"][~result["equal"]]
    for problem in ("missing", "not expected"):
        if len(names := wrong.index[wrong == problem]):
            raise AssertionError(f"{problem}: {', '.join(names)}")
    for name, expects in wrong[wrong.str.startswith("expected")].items():
        shape = result.loc[name, "per-sample shape"]
        raise AssertionError(f"{name} has the wrong shape: {expects}, got {shape}")
    if len(wrong):
        errors = ", ".join(f"{name} by {error}" for name, error in wrong.items())
        raise AssertionError(f"right shape, wrong values: {errors} of the largest entry")
    return result


def largest_error(got: Tensor, expected: Tensor, *, scale: float | None = None) -> float:
    """Return the largest difference of two tensors of one shape, relative to their size.

    Relative to the largest entry of `expected`. A parameter whose gradient vanishes (the bias of
    attention keys) holds only rounding errors of larger numbers, so the divisor is at least a tenth
    of `scale`.

    Args:
        got: A tensor.
        expected: A tensor of the same shape.
        scale: The largest entry of all gradients that were computed together; `None` means that
            of `expected`.

    Returns:
        The error; 0.0 for empty tensors, infinity where one holds a NaN or an infinity.
    """
    difference = (got.detach().to(expected.device) - expected.detach()).abs()
    if difference.numel() == 0:
        return 0.0
    largest = difference.max().item()  # NaN if there is one
    if not isfinite(largest):
        return inf
    return largest / (max(_largest(expected), (scale or 0.0) / 10) or 1.0)


def _largest(tensor: Tensor) -> float:
    """Return the largest absolute entry, 0.0 if there is none."""
    return tensor.detach().abs().max().item() if tensor.numel() else 0.0
