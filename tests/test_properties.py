"""Properties of all ways over models, batches, chunks and names drawn at will."""

import copy
import functools

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from helpers import norms
from tests.support.architectures import architectures
from tests.support.oracle import METHODS, TOLERANCE, Truth, assert_equal, oracle
from tests.support.ways import LEGACY, WAYS

examples = functools.partial(
    settings,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
CLOSE = 100 * TOLERANCE  # recurrences, products of many layers: hundreds of roundings in a row


@examples(max_examples=100)
@given(
    architectures(),
    st.sampled_from(sorted(METHODS)),
    st.sampled_from([None, 1, 2]),
    st.data(),
)
@pytest.mark.filterwarnings("ignore")
def test_gradients_norms_and_sums_by_any_names(case, method, chunk_size, data):
    names = [name for name, _ in case.model.named_parameters()]
    assume(names)
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    every = oracle(*case.args, wrt=names)
    rows = {name: every[name] for name in chosen}
    norm = torch.cat([each.flatten(1) for each in rows.values()], dim=1).norm(dim=1)
    limit = norm.median().item() or 1.0
    factors = (limit / norm).clamp(max=1)
    total = {n: torch.einsum("b,b...->...", factors, each) for n, each in rows.items()}
    # A gradient that vanishes is what rounding leaves of larger numbers.
    scale = max(each.abs().max().item() for each in every.values())
    close = functools.partial(torch.testing.assert_close, rtol=CLOSE, atol=CLOSE * scale)
    options = {"wrt": chosen, "chunk_size": chunk_size}
    close(norms.gradient_norms(*case.args, **options), norm)
    for got, expected in (
        (METHODS[method](*case.args, wrt=chosen), rows),
        (norms.clipped_sum(*case.args, limit, **options), total),
    ):
        assert list(got) == chosen
        close(got, expected)


CURVATURE = "kernel", "Fisher", "Gauss-Newton"
OF_OUTPUTS = [name for name in WAYS if "Jacobian" in name or name in CURVATURE]


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.whole)])
@pytest.mark.filterwarnings("ignore")
def test_all_ways_agree_for_any_architecture(count):
    @examples(max_examples=count)
    @given(architectures())
    def check(case) -> None:
        truth = Truth(lambda: copy.deepcopy(case))
        few = truth.outputs.shape[1] <= 5  # a Jacobian by hand takes a backward for each output
        for name, way in (WAYS | LEGACY).items():
            if name == "functorch gone" or (name in OF_OUTPUTS and not few):
                continue
            try:
                if way.takes(truth):
                    assert_equal(way.compute(case, truth), way.expected(truth), CLOSE)
            except Exception as error:
                error.add_note(f"by {name}")
                raise

    check()
