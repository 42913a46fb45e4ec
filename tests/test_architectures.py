"""All ways agree with a loop in float64 that shares no code, for architectures drawn at will."""

import functools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from helpers import gradients, jacobians, norms
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from tests.architectures import architectures
from tests.oracle import TOLERANCES, assert_equal
from tests.support.contract import by_pairs
from tests.test_gradient_computers import LossOf
from tests.zoo import Case

examples = functools.partial(
    settings,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
pytestmark = pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
# Recurrences and products of many layers: some hundred roundings, one after the other.
TOLERANCE = 100 * TOLERANCES[torch.float64]


def check(case: Case) -> None:
    """Compare all ways."""
    # Pairs, since torch is wrong for a batch of one where a normalisation is read transposed.
    truth = by_pairs(case.model, *case.batch)
    squares = torch.zeros(len(case.data), dtype=torch.float64)
    for rows in truth.values():
        squares += rows.flatten(1).square().sum(1)
    limit = squares.sqrt().median().item() or 1.0
    factors = (limit / squares.sqrt()).clamp(max=1)
    clipped = {name: torch.einsum("b,b...->...", factors, rows) for name, rows in truth.items()}
    out = {name: torch.full_like(rows, torch.nan) for name, rows in truth.items()}
    count = sum(rows[0].numel() for rows in truth.values())

    def computed(kind: type) -> dict[str, Tensor]:
        computer = kind(case.model, LossOf(case.loss_fn), count, torch.float64, "cpu")
        return computer.compute_per_sample_grad(case.batch)

    def contracted(compute) -> dict[str, Tensor]:
        with torch.no_grad():
            residuals = torch.cat([case.model(row) for row in case.data.split(1)]) - case.targets
        flat = torch.einsum("byp,by->bp", compute(case.model, case.data), residuals)
        return jacobians.unflatten_jacobians(flat, case.model)

    ways = {
        "loop": (lambda: gradients.loop_gradients(*case.args), truth),
        "functorch": (lambda: gradients.functorch_gradients(*case.args), truth),
        "func": (lambda: gradients.func_gradients(*case.args), truth),
        "chunks": (lambda: gradients.func_gradients(*case.args, chunk_size=2), truth),
        "out": (lambda: gradients.func_gradients(*case.args, chunk_size=3, out=out), truth),
        "norms": (lambda: {"": norms.gradient_norms(*case.args)}, {"": squares.sqrt()}),
        "clipped": (lambda: norms.clipped_sum(*case.args, limit, chunk_size=2), clipped),
        "func Jacobians": (lambda: contracted(jacobians.func_jacobians), truth),
        "loop Jacobians": (lambda: contracted(jacobians.loop_jacobians), truth),
        "functional": (lambda: computed(FunctionalGradientComputer), truth),
        "iterative": (lambda: computed(IterativeGradientComputer), truth),
    }
    for way, (compute, expected) in ways.items():
        try:
            assert_equal(compute(), expected, TOLERANCE)
        except Exception as error:
            error.add_note(f"by {way}")
            raise


@examples(max_examples=12)
@given(architectures())
def test_all_ways_agree_for_any_architecture(case):
    check(case)


@pytest.mark.whole
@examples(max_examples=100)
@given(architectures())
def test_all_ways_agree_for_many_more(case):
    check(case)
