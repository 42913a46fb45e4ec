"""The neural tangent kernel against a loop of autograd; its memory; what it refuses."""

import functools

import pytest
import torch
from torch import nn

from helpers import benchmark, kernels
from tests.support import wild, zoo
from tests.support.oracle import Truth

METHODS = ("auto", "jacobian", "vector", "structured")
every_method = pytest.mark.parametrize("method", METHODS)
close = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


# Frozen and tied weights, a scalar, an embedding, a layer that meets several vectors a sample, and
# a model that `vmap` cannot transform.
CASES = {
    name: functools.partial(zoo.make, name, 4)
    for name in [
        *("mlp", "cnn", "frozen", "shared layer", "scalars", "unused", "embedding", "lstm"),
        "grouped",
    ]
} | {"item": functools.partial(wild.make, "item")}


@functools.cache
def truth_of(name: str) -> Truth:
    return Truth(CASES[name])


@every_method
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_equals_products_of_jacobians_by_hand(name, method):
    case, rows = CASES[name](), truth_of(name).jacobians
    for chunk_size in (None, 2):
        options = {"method": method, "chunk_size": chunk_size}
        got = kernels.ntk(case.model, case.data[:3], case.data[2:], **options)
        assert not got.requires_grad
        close(got, torch.einsum("iap,jbp->ijab", rows[:3], rows[2:]))
        alone = kernels.ntk(case.model, case.data, **options)
        close(alone, torch.einsum("iap,jbp->ijab", rows, rows))


def test_memory_is_bounded_by_chunks_and_not_by_samples():
    model = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 2))
    one = 4 * sum(p.numel() for p in model.parameters())  # bytes of P numbers

    def peak(n: int, **options: object) -> float:
        x = torch.randn(n, 50)
        result = 4 * (2 * n) ** 2
        return (benchmark.memory(lambda: kernels.ntk(model, x, **options)).peak - result) / one

    few, many = (peak(n, method="jacobian", chunk_size=2) for n in (4, 16))
    assert many < 1.1 * few
    # Factors and biases instead of P numbers for each output of each sample.
    assert peak(16) < 16 * 2 / 4 < peak(16, method="jacobian")
    assert peak(8, method="vector", chunk_size=1) < 8


X = torch.randn(2, 4)
# By what the message names, the call.
REFUSED = {
    "one shape": lambda: kernels.ntk(mlp(), X, torch.randn(2, 5)),
    "BatchNorm": lambda: kernels.ntk(nn.BatchNorm1d(4), X),
    "got 'fast'": lambda: kernels.ntk(mlp(), X, method="fast"),
    "a part of x2": lambda: kernels.ntk(mlp(), torch.randn(1, 4).expand(10**6, 4)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refuses_what_does_not_match_or_fit(words):
    with pytest.raises(ValueError, match=words):
        REFUSED[words]()


def test_solve_solves_and_refuses_a_singular_kernel():
    torch.manual_seed(0)
    model, x, values = mlp().double(), torch.randn(3, 4).double(), torch.randn(3, 3).double()
    kernel = kernels.ntk(model, x)
    alpha = kernels.solve(kernel, values, ridge=0.5)
    close(torch.einsum("ijab,jb->ia", kernel, alpha) + 0.5 * alpha, values)
    twice = kernels.ntk(model, x[[0, 1, 1]])
    assert kernels.solve(twice, values, ridge=1e-3).shape == (3, 3)
    nan = kernel.clone()
    nan[0, 2, 1, 0] = torch.nan  # above the diagonal
    for words, arguments, ridge in (
        ("finite", (nan, values), 1.0),
        ("singular", (twice, values), 0),
        ("kernel must be", (kernel, values[:2]), 0),
    ):
        with pytest.raises(ValueError, match=words):
            kernels.solve(*arguments, ridge=ridge)
