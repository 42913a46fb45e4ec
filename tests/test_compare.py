"""The comparison fails by name, then by shape, then by value, and says the same everywhere."""

import pytest
import torch
from torch import Tensor

from helpers import compare

nan, inf = float("nan"), float("inf")


def gradients(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    weight = torch.linspace(-1, 1, 12, dtype=dtype).reshape(2, 2, 3)
    return {"weight": scale * weight, "bias": scale * weight[:, :, 0]}


def failure(got: dict[str, Tensor], expected: dict[str, Tensor], **options: float) -> str:
    """Return what `check` says, and require that `table` says it of some parameter too."""
    assert not compare.table(got, expected, **options)["equal"].all()
    with pytest.raises(AssertionError) as raised:
        compare.check(got, expected, **options)
    return str(raised.value)


def test_the_table_reads_as_saved():
    got, expected = gradients() | {"more": torch.zeros(2)}, gradients()
    got["bias"] = got["bias"] + 0.25
    expected |= {"scale": torch.zeros(2), "turned": torch.zeros(2, 3, 4)}
    got["turned"] = torch.zeros(2, 4, 3)
    assert compare.table(got, expected).to_string().split("\n") == [
        "            shape per-sample shape       largest error  equal",
        "parameter                                                    ",
        "weight     (2, 3)        (2, 2, 3)         below 1e-05   True",
        "bias         (2,)           (2, 2)             2.5e-01  False",
        "scale          ()             (2,)             missing  False",
        "turned     (4, 3)        (2, 4, 3)  expected (2, 3, 4)  False",
        "more           ()             (2,)        not expected  False",
    ]


WRONG = "right shape, wrong values:"
# By what the comparison says, what is done to right gradients.
FAILURES = {
    "missing: bias": lambda g: {"weight": g["weight"].mT, "Bias": g["bias"]},
    "not expected: Bias, extra": lambda g: (
        g | {"weight": g["weight"].mT, "Bias": 0.0, "extra": 0.0}
    ),
    "weight has the wrong shape: expected (2, 2, 3), got (2, 3, 2)": (
        lambda g: {"weight": g["weight"].mT, "bias": g["bias"] + 1}
    ),
    "weight has the wrong shape: expected (2, 2, 3), got (1, 2, 3)": (  # which would broadcast
        lambda g: g | {"weight": torch.ones(1, 2, 3)}
    ),
    f"{WRONG} weight by 2.0e+00, bias by 1.0e+00 of the largest entry": (
        lambda g: {"weight": g["weight"] * 3, "bias": g["bias"] + 1}
    ),
}


@pytest.mark.parametrize("said", FAILURES)
def test_it_fails_by_name_then_by_shape_then_by_value(said):
    got = {name: torch.as_tensor(each) for name, each in FAILURES[said](gradients()).items()}
    assert failure(got, gradients()) == said


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tolerance_is_relative_to_the_largest_entry(dtype, scale):
    expected = gradients(scale, torch.float64)
    for factor, equal in ((0.5, True), (2.0, False)):
        got = {name: tensor.clone() for name, tensor in expected.items()}
        got["weight"][0, 0, 0] *= 1 + factor * compare.TOLERANCES[dtype]
        got = {name: tensor.to(dtype) for name, tensor in got.items()}
        assert compare.table(got, expected)["equal"].tolist() == [equal, True]


@pytest.mark.parametrize(
    ("error", "tolerance", "text", "equal"),
    [
        (0.0, 0.0, "0.0e+00", True),
        (0.25, 0.25, "2.5e-01", True),
        (0.25, 0.5, "below 5e-01", True),
        (0.25, 0.125, "2.5e-01", False),
        (0.0, 2.5e-6, "below 2.5e-06", True),
        (0.5, inf, "below inf", True),
    ],
)
def test_the_edge_of_the_tolerance(error, tolerance, text, equal):
    got, expected = {"w": torch.tensor([1.0, 1 - error])}, {"w": torch.ones(2)}
    row = compare.table(got, expected, tolerance=tolerance).iloc[0]
    assert (row["largest error"], row["equal"]) == (text, equal)


@pytest.mark.parametrize("tolerance", [None, 1.0, inf])
@pytest.mark.parametrize(("left", "right"), [(nan, 1.0), (1.0, nan), (nan, nan), (inf, 1.0)])
def test_what_is_not_finite_is_never_equal(left, right, tolerance):
    got, expected = {"w": torch.tensor([1.0, left])}, {"w": torch.tensor([1.0, right])}
    message = "right shape, wrong values: w by inf of the largest entry"
    assert failure(got, expected, tolerance=tolerance) == message


def test_empty_batches_and_no_parameters():
    empty = {"weight": torch.zeros(0, 2, 3)}
    assert compare.check(empty, empty)["equal"].tolist() == [True]
    assert failure(empty, {"weight": torch.zeros(0, 2)}).startswith("weight has the wrong shape")
    with pytest.raises(AssertionError, match="there is nothing to compare"):
        compare.check({}, {})


def test_a_gradient_that_vanishes_is_measured_against_the_others():
    # The bias of attention keys shifts all scores alike: nothing but rounding is left of it.
    expected = {"keys": torch.full((2,), 1e-17), "weight": torch.ones(2, 3)}
    got = {"keys": torch.full((2,), -3e-8), "weight": torch.ones(2, 3)}
    assert compare.check(got, expected)["equal"].all()
    got["keys"] += 1e-5
    message = "right shape, wrong values: keys by 1.0e-04 of the largest entry"
    assert failure(got, expected) == message
    assert not compare.table({"keys": got["keys"]}, {"keys": expected["keys"]})["equal"].any()
