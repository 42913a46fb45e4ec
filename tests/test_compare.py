"""The comparison fails by name, then by shape, then by value, and says the same everywhere."""

import pytest
import torch
from torch import Tensor

from helpers import compare

nan, inf = float("nan"), float("inf")
WEIGHT = torch.linspace(-1, 1, 12).reshape(2, 2, 3)
RIGHT = {"weight": WEIGHT, "bias": WEIGHT[:, :, 0]}


def failure(got: dict[str, Tensor], expected: dict[str, Tensor], **options: float) -> str:
    """Return what `check` says, and require that `table` says it of some parameter too."""
    assert not compare.table(got, expected, **options)["equal"].all()
    with pytest.raises(AssertionError) as raised:
        compare.check(got, expected, **options)
    return str(raised.value)


def test_it_fails_by_name_then_by_shape_then_by_value():
    got = {"weight": WEIGHT.mT, "bias": RIGHT["bias"] + 1}
    assert failure(got | {"Bias": WEIGHT}, RIGHT | {"scale": WEIGHT}) == "missing: scale"
    assert failure(got | {"Bias": WEIGHT}, RIGHT) == "not expected: Bias"
    assert "wrong shape" in failure(got, RIGHT)
    assert "wrong shape" in failure(RIGHT | {"weight": torch.ones(1, 2, 3)}, RIGHT)
    said = "weight by 2.0e+00, bias by 1.0e+00"
    assert said in failure(got | {"weight": WEIGHT * 3}, RIGHT)
    table = compare.table(got, RIGHT | {"scale": WEIGHT})
    assert table["equal"].tolist() == [False, False, False]
    with pytest.raises(AssertionError, match="nothing to compare"):
        compare.check({}, {})


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tolerance_is_relative_to_the_largest_entry(dtype, scale):
    expected = {name: scale * tensor.double() for name, tensor in RIGHT.items()}
    for factor, equal in ((0.5, True), (2.0, False)):
        got = {name: tensor.clone() for name, tensor in expected.items()}
        got["weight"][0, 0, 0] *= 1 + factor * compare.TOLERANCES[dtype]
        got = {name: tensor.to(dtype) for name, tensor in got.items()}
        assert compare.table(got, expected)["equal"].tolist() == [equal, True]


@pytest.mark.parametrize("tolerance", [None, inf])
@pytest.mark.parametrize(("left", "right"), [(nan, 1.0), (1.0, nan), (nan, nan), (inf, 1.0)])
def test_what_is_not_finite_is_never_equal(left, right, tolerance):
    got, expected = {"w": torch.tensor([1.0, left])}, {"w": torch.tensor([1.0, right])}
    assert "w by inf" in failure(got, expected, tolerance=tolerance)


def test_a_gradient_that_vanishes_is_measured_against_the_others():
    # The bias of attention keys shifts all scores alike: nothing but rounding is left of it.
    expected = {"keys": torch.full((2,), 1e-17), "weight": torch.ones(2, 3), "no": torch.ones(0)}
    got = expected | {"keys": torch.full((2,), -3e-8)}
    assert compare.check(got, expected)["equal"].all()
    got["keys"] += 1e-5
    assert "keys by 1.0e-04" in failure(got, expected)
    assert not compare.table({"keys": got["keys"]}, {"keys": expected["keys"]})["equal"].any()
