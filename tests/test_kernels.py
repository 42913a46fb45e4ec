"""The neural tangent kernel against a loop of autograd; its memory; what it refuses."""

import functools

import pytest
import torch
from torch import nn

from helpers import benchmark, kernels
from tests.support import wild, zoo
from tests.support.oracle import Truth

close = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.many = nn.Parameter(torch.ones(10**6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.many.sum()


# Frozen and tied weights, a scalar, an embedding, a layer that meets several vectors a sample, and
# a model that `vmap` cannot transform.
NAMES = "mlp", "cnn", "frozen", "shared layer", "scalars", "unused", "embedding", "lstm", "grouped"
CASES = {name: functools.partial(zoo.make, name, 4) for name in NAMES}
CASES["item"] = functools.partial(wild.make, "item")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_equals_products_of_jacobians_by_hand(name):
    case = CASES[name]()
    rows = Truth(CASES[name]).jacobians  # (N, Y, P)
    for chunk_size in (None, 2):
        got = kernels.ntk(case.model, case.data[:3], case.data[2:], chunk_size=chunk_size)
        assert not got.requires_grad
        close(got, torch.einsum("iap,jbp->ijab", rows[:3], rows[2:]))
        alone = kernels.ntk(case.model, case.data, chunk_size=chunk_size)
        close(alone, torch.einsum("iap,jbp->ijab", rows, rows))


def test_memory_is_bounded_by_chunks_and_not_by_samples():
    def peak(model: nn.Module, x: torch.Tensor, chunk_size: int | None) -> float:
        """Measure how many times P numbers were held, besides the result."""
        memory = benchmark.memory(lambda: kernels.ntk(model, x, chunk_size=chunk_size))
        result = (2 * len(x)) ** 2 * 4  # bytes, of two outputs
        formed = sum(parameter.nbytes for parameter in model.parameters())
        return (memory.peak - result) / formed

    dense = nn.Sequential(nn.Conv1d(50, 400, 1), nn.ReLU(), nn.Conv1d(400, 2, 1), nn.Flatten())
    few = peak(dense, torch.randn(4, 50, 1), chunk_size=2)
    many = peak(dense, torch.randn(16, 50, 1), chunk_size=2)
    assert many < 1.1 * few
    # Factors and biases instead of P numbers for each output of each sample.
    linear = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 2))
    assert peak(linear, torch.randn(16, 50), chunk_size=None) < 16 * 2 / 4


X = torch.randn(2, 4)
# By what the message names, the call.
REFUSED = {
    "one shape": lambda: kernels.ntk(nn.Linear(4, 3), X, torch.randn(2, 5)),
    "BatchNorm": lambda: kernels.ntk(nn.BatchNorm1d(4), X),
    "x2 in parts": lambda: kernels.ntk(nn.Linear(4, 3), torch.randn(1, 4).expand(10**6, 4)),
    "smaller chunk_size": lambda: kernels.ntk(
        Sum(), torch.zeros(1, 1).expand(10**6, 1), torch.zeros(1, 1), chunk_size=10**6
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refuses_what_does_not_match_or_fit(words):
    with pytest.raises(ValueError, match=words):
        REFUSED[words]()
