"""Norms and clipped sums, beside what they share with gradients: precision, memory, the limit."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import benchmark, gradients, norms
from helpers.models import SimpleCNN
from tests.support.architectures import case_of
from tests.support.oracle import TOLERANCES, Truth, assert_equal, oracle, refused
from tests.support.zoo import Apply, Case, make

SUMS = norms.gradient_norms, functools.partial(norms.clipped_sum, limit=1.0)
close = torch.testing.assert_close


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_a_bad_limit_is_refused(limit):
    with refused("limit"):
        make("mlp").pass_to(norms.clipped_sum, limit)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_what_cancels_is_not_taken_from_gram_matrices(dtype):
    torch.manual_seed(0)
    model = nn.Linear(40, 40, bias=False).to(dtype)
    tokens = torch.randn(3, 1, 40, dtype=dtype)
    data = torch.cat([tokens, -tokens * (1 - 1e-3)], dim=1)
    case = Case(model, data, torch.ones_like(data), lambda p, t: (p * t).sum())
    expected = case.pass_to(oracle)["weight"].flatten(1).norm(dim=1)
    found = case.pass_to(norms.gradient_norms)
    assert_equal({"": found}, {"": expected}, TOLERANCES[dtype])


@pytest.mark.parametrize("size", [1, 257, 1_000_001])
def test_squares_of_many_numbers_are_added_up_without_loss(size):
    """In float32, of a bias, whose gradient is the targets."""
    torch.manual_seed(0)
    model = Apply(lambda m, x: x + m.bias, bias=nn.Parameter(torch.zeros(size)))
    numbers = torch.randn(2, size)
    got = norms.gradient_norms(model, lambda p, t: (p * t).sum(), torch.zeros(2, 1), numbers)
    close(got.double(), numbers.double().norm(dim=1), rtol=5e-7, atol=0)


def test_sums_in_half_precision_are_those_of_all_samples():
    """The gradient of each sample is 1, and in bfloat16 512 + 2 is 512."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    data = torch.ones(1024, 1, dtype=torch.bfloat16)
    total = norms.clipped_sum(model, lambda z, t: z.sum(), data, data, 2.0, chunk_size=2)
    assert total["weight"].dtype == torch.float32
    assert total["weight"].item() == 1024


def test_autocast_in_the_forward():
    torch.manual_seed(0)

    def run(self: Apply, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.b(self.a(inputs).tanh()).float()

    case = case_of(Apply(run, a=nn.Linear(4, 4), b=nn.Linear(4, 2)), (4,), 3, torch.float32)
    truth = Truth(lambda: case)
    truth.gradients = case.pass_to(gradients.func_gradients)
    # bfloat16 keeps 8 bits: one rounding is 4e-3
    close(case.pass_to(norms.gradient_norms), truth.norms.float(), rtol=2e-2, atol=0)
    for total in case.pass_to(norms.clipped_sum, 1.0).values():
        assert total.dtype == torch.float32


def test_memory_of_sums_does_not_grow_with_the_batch():
    model = SimpleCNN()
    for function in SUMS:
        peaks = []
        for size in (16, 64):
            data, targets = torch.randn(size, 1, 28, 28), torch.randint(10, (size,))
            case = Case(model, data, targets, F.cross_entropy)
            call = functools.partial(case.pass_to, function, chunk_size=16)
            peaks.append(benchmark.memory(call).peak)
        gradients_of_a_chunk = 16 * 4 * sum(p.numel() for p in model.parameters())
        assert peaks[1] < 1.05 * peaks[0] < gradients_of_a_chunk


ODD_LAYERS = {
    "embedding": (nn.Embedding(3, 2), torch.tensor([0, 1])),
    "convolution": (nn.Conv1d(1, 2, 2), torch.ones(2, 1, 3)),
    "linear": (nn.Linear(3, 2, bias=False), torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", ODD_LAYERS)
def test_a_chunk_whose_only_odd_samples_are_not_finite(name):
    model, data = ODD_LAYERS[name]
    factors = torch.tensor([1.0, math.nan])
    loss_fn = lambda outputs, factor: (outputs * factor).sum()  # noqa: E731
    expected = norms.clipped_sum(model, loss_fn, data[:1], factors[:1], 1.0)
    for size in (None, 1):
        found = norms.clipped_sum(model, loss_fn, data, factors, 1.0, chunk_size=size)
        close(found, expected)
    if name == "embedding":
        row = torch.full((2,), 0.5**0.5)
        close(found["weight"][0], row, rtol=1e-4, atol=0)
        assert not found["weight"][1:].any()
