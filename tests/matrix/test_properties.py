"""All ways over models, batches and names drawn at will."""

import copy
import functools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import gradients, norms
from tests.support.architectures import architectures
from tests.support.oracle import TOLERANCE, Truth, assert_equal, oracle
from tests.support.ways import WAYS

CLOSE = 100 * TOLERANCE  # recurrences, products of many layers: hundreds of roundings in a row
OF_OUTPUTS = [name for name in WAYS if "Jacobian" in name or name == "kernel"]
TOO_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
OPTIONS = {"derandomize": True, "database": None, "suppress_health_check": TOO_SLOW}
examples = functools.partial(settings, deadline=None, **OPTIONS)


@pytest.mark.parametrize("count", [16, pytest.param(100, marks=pytest.mark.whole)])
@pytest.mark.filterwarnings("ignore")
def test_all_ways_agree_for_any_architecture(count):
    @examples(max_examples=count)
    @given(architectures())
    def check(case) -> None:
        truth = Truth(lambda: copy.deepcopy(case))
        few = truth.outputs.shape[1] <= 5  # a Jacobian by hand takes a backward for each output
        for name, way in WAYS.items():
            if name in OF_OUTPUTS and not few:
                continue
            try:
                if way.takes(truth):
                    assert_equal(way.compute(case, truth), way.expected(truth), CLOSE)
            except Exception as error:
                error.add_note(f"by {name}")
                raise

    check()


@examples(max_examples=60)
@given(architectures(), st.sampled_from([None, 1, 2]), st.data())
@pytest.mark.filterwarnings("ignore")
def test_any_names_in_chunks(case, chunk_size, data):
    names = [name for name, _ in case.model.named_parameters()]
    if not names:
        return
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    every = case.pass_to(oracle, wrt=names)
    truth = Truth(lambda: case)
    truth.gradients = {name: every[name] for name in chosen}
    # A gradient that vanishes is what rounding leaves of larger numbers.
    scale = max(each.abs().max().item() for each in every.values())
    options = {"wrt": chosen, "chunk_size": chunk_size}
    for got, expected in (
        (case.pass_to(gradients.func_gradients, **options), truth.gradients),
        ({"": case.pass_to(norms.gradient_norms, **options)}, {"": truth.norms}),
        (case.pass_to(norms.clipped_sum, truth.limit, **options), truth.clipped_sum),
    ):
        largest = max(each.abs().max().item() for each in expected.values())
        assert_equal(got, expected, CLOSE * max(1, scale / (largest or 1)))
