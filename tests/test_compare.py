"""The error is relative to the largest entry, and what is not finite is never equal."""

import math

import pytest
import torch

from helpers import compare

RIGHT = torch.linspace(-1, 1, 12).reshape(2, 2, 3)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_error_is_relative_to_the_largest_entry(dtype, scale):
    expected = scale * RIGHT.double()
    got = expected.clone()
    got[0, 0, 0] *= 1 + 2 * compare.TOLERANCES[dtype]
    error = compare.largest_error(got.to(dtype), expected)
    assert error == pytest.approx(2 * compare.TOLERANCES[dtype], rel=0.1)


def test_where_nothing_can_be_divided_by():
    assert compare.largest_error(torch.ones(0), torch.ones(0)) == 0.0
    assert compare.largest_error(torch.full((2,), 0.5), torch.zeros(2)) == 0.5


@pytest.mark.parametrize(
    ("left", "right"), [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan), (math.inf, 1.0)]
)
def test_what_is_not_finite_is_never_equal(left, right):
    got, expected = torch.tensor([1.0, left]), torch.tensor([1.0, right])
    assert compare.largest_error(got, expected) == math.inf
