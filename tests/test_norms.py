"""Norms and clipped sums of per-sample gradients, against gradients that exist."""

import functools

import pytest
import torch
from hypothesis import settings

from helpers import gradients, norms
from tests.oracle import TOLERANCES, assert_equal, oracle
from tests.zoo import MODELS, Case, make

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning"),
]
examples = functools.partial(settings, deadline=None, derandomize=True, database=None)


def check(case: Case, **options: object) -> None:
    """Compare both functions with the oracle, at a limit that clips some samples and not others."""
    wrt = options.get("wrt")
    grads = oracle(*case.args, wrt=wrt)
    tolerance = TOLERANCES[case.data.dtype if case.data.is_floating_point() else torch.float64]
    norm = torch.cat([g.reshape(len(g), -1) for g in grads.values()], dim=1).square().sum(1).sqrt()
    limit = norm.median().item() or 1.0
    factors = (limit / norm).clamp(max=1)
    total = {n: torch.einsum("b,b...->...", factors, g) for n, g in grads.items()}
    got = norms.gradient_norms(*case.args, **options)
    assert_equal({"norm": got}, {"norm": norm}, tolerance)
    assert_equal(norms.clipped_sum(*case.args, limit, **options), total, tolerance)


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_zoo(name, chunk_size):
    check(make(name), chunk_size=chunk_size)


SEEN_WHOLE = [
    *("linear", "no bias", "shared layer", "tied weight", "frozen", "unused", "stash"),
    *("embedding", "embedding padding", "layer norm", "depthwise", "group norm", "dilated"),
    *("grouped", "pooled", "mlp", "cnn", "no_grad inside", "buffer in place"),
]


@pytest.mark.parametrize("name", SEEN_WHOLE)
def test_what_is_seen_is_not_materialised(name, monkeypatch):
    monkeypatch.setattr(gradients, "func_gradients", None)
    case = make(name)
    norms.clipped_sum(*case.args, 1.0)


@pytest.mark.parametrize("name", ["lstm", "attention train", "scalars", "weight norm", "bilinear"])
def test_what_is_not_seen_is_materialised(name, monkeypatch):
    case, calls = make(name), []
    real = gradients.func_gradients
    monkeypatch.setattr(
        gradients, "func_gradients", lambda *a, **o: calls.append(o["wrt"]) or real(*a, **o)
    )
    norms.gradient_norms(*case.args)
    assert len(calls) == 1
