"""How far two results differ, and how far correct ones may."""

import math

import torch
from torch import Tensor

# Correct methods differ by rounding alone: a few times 1e-16 of the largest entry in float64 and
# 1e-7 in float32, more where long sums are added in another order. On the networks of the lessons
# 6e-15 and 1e-6 were measured; these leave a factor of 10 and more. An exception is max-pooling in
# float32, where rounding may pick another one of two nearly equal values: compare in float64.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def largest_error(got: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two tensors, relative to the largest entry of `expected`.

    Args:
        got: A tensor.
        expected: A tensor of the same shape.

    Returns:
        The error; 0.0 for empty tensors, infinity where one holds a NaN or an infinity. If
        `expected` is zero, the error is absolute.
    """
    expected = expected.detach()
    difference = (got.detach().to(expected.device) - expected).abs()
    if difference.numel() == 0:
        return 0.0
    largest = difference.max().item()  # NaN if there is one
    if not math.isfinite(largest):
        return math.inf
    scale = expected.abs().max().item()
    return largest / scale if scale else largest
