"""Counts that are refused, the dtype of sums, and when two gradients are the same."""

import math

import numpy as np
import pytest
import torch

from helpers import numbers


@pytest.mark.parametrize("count", [1, 3, np.int64(2), 5])
def test_a_count_within_its_range(count):
    numbers.check_count("size", count, 1, 5)


@pytest.mark.parametrize("count", [0, 6, 2.0, True, "2", None])
def test_a_count_that_is_none_or_out_of_its_range(count):
    with pytest.raises(ValueError, match="size"):
        numbers.check_count("size", count, 1, 5)


def test_sums_are_at_least_in_float32():
    assert numbers.wide(torch.bfloat16) == torch.float32
    assert numbers.wide(torch.float64) == torch.float64
    assert numbers.wide(torch.complex64) == torch.complex64


def test_an_error_is_measured_by_the_largest_entry_of_its_parameter():
    expected = {"large": torch.tensor([1000.0, 1.0]), "small": torch.tensor([1e-3])}
    got = {"large": torch.tensor([1000.0, 1.5]), "small": torch.tensor([1.5e-3])}
    assert numbers.differences(got, expected, 1e-3) == {}, "0.5 of 1000; and of all, rounding"
    assert numbers.differences(got, expected, 1e-4) == pytest.approx({"large": 5e-4})
    alone = numbers.differences({"small": got["small"]}, {"small": expected["small"]})
    assert alone == pytest.approx({"small": 0.5})


def test_nan_equals_nan_and_nothing_else():
    nan, one = torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0])
    assert numbers.differences({"w": nan}, {"w": nan}) == {}
    assert math.isnan(numbers.differences({"w": nan}, {"w": one})["w"])
    assert math.isnan(numbers.largest_difference(one, nan))
