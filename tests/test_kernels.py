"""The neural tangent kernel against a loop of autograd; its memory; what it refuses."""

import functools

import pytest
import torch
from torch import nn

from helpers import benchmark, kernels, norms
from tests.support import wild, zoo
from tests.support.oracle import Truth

close = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.many = nn.Parameter(torch.ones(10**6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.many.sum()


class Imaginary(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z.imag


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


class Waves(nn.Module):
    """A complex layer that feeds a real one, with the parts of its weight apart or together."""

    def __init__(self, *, together: bool) -> None:
        super().__init__()
        self.together = together
        parts = torch.randn(2, 3, 4, dtype=torch.float64)
        if together:
            self.weight = nn.Parameter(torch.complex(parts[0], parts[1]))
        else:
            self.real, self.imag = nn.Parameter(parts[0]), nn.Parameter(parts[1])
        self.out = nn.Linear(6, 2, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight if self.together else torch.complex(self.real, self.imag)
        waves = nn.functional.linear(x.to(weight.dtype), weight).tanh()
        return self.out(torch.cat([waves.real, waves.imag], dim=-1)).flatten(2).mean(dim=1)


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.filterwarnings("ignore")  # `jacrev` takes no complex parameters, so the loop does
def test_a_complex_weight_counts_as_its_real_and_imaginary_parts(positions):
    torch.manual_seed(0)
    apart = Waves(together=False)
    torch.manual_seed(0)
    together = Waves(together=True)
    x = torch.randn(4, positions, 4, dtype=torch.float64)
    close(kernels.ntk(together, x[:2], x), kernels.ntk(apart, x[:2], x))
    close(kernels.ntk(together, x), kernels.ntk(apart, x))

    def loss_fn(outputs: torch.Tensor, targets: None) -> torch.Tensor:
        return outputs.square().sum()

    close(norms.gradient_norms(together, loss_fn, x), norms.gradient_norms(apart, loss_fn, x))


@pytest.mark.filterwarnings("ignore")
def test_of_one_complex_weight_by_hand_and_of_complex_outputs_not():
    model = nn.Linear(1, 1, bias=False, dtype=torch.complex128)
    nn.init.ones_(model.weight)
    x = torch.tensor([[2.0 + 0j]], dtype=torch.complex128)
    with pytest.raises(ValueError, match="real and imaginary parts as two outputs"):
        kernels.ntk(model, x)

    # Im(w x) = 2 Im(w): its gradient has the entry 2, for the imaginary part.
    parts = nn.Sequential(model, Imaginary())
    assert kernels.ntk(parts, x).item() == 4


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
