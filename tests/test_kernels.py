"""The neural tangent kernel against a loop of autograd; its memory; what it refuses."""

import functools

import pytest
import torch
from torch import Tensor, nn

from helpers import benchmark, jacobians, kernels
from helpers.kernels import room, tangent
from helpers.transforms.fallback import FallbackWarning
from tests.support import zoo
from tests.support.oracle import Truth

METHODS = ("auto", "jacobian", "vector", "structured")


class Branches(nn.Module):
    """A forward that reads a number, which `vmap` cannot transform."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) if x.sum().item() > 0 else self.second(x.sin())


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def cnn() -> nn.Sequential:
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)
    return nn.Sequential(*layers).eval()


# Frozen and tied weights, a scalar, an embedding, a layer that meets several vectors a sample.
CASES = [
    "mlp",
    "cnn",
    "frozen",
    "shared layer",
    "scalars",
    "unused",
    "embedding",
    "lstm",
    "grouped",
]


@functools.cache
def truth_of(name: str) -> Truth:
    return Truth(lambda: zoo.make(name, 4))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_equals_products_of_jacobians_by_hand(name: str, method: str) -> None:
    case, rows = zoo.make(name, 4), truth_of(name).jacobians
    for chunk_size in (None, 2):
        options = {"method": method, "chunk_size": chunk_size}
        got = kernels.ntk(case.model, case.data[:3], case.data[2:], **options)
        assert not got.requires_grad
        expected = torch.einsum("iap,jbp->ijab", rows[:3], rows[2:])
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
        alone = kernels.ntk(case.model, case.data, **options)
        expected = torch.einsum("iap,jbp->ijab", rows, rows)
        torch.testing.assert_close(alone, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_takes_a_model_that_vmap_cannot(method: str) -> None:
    torch.manual_seed(0)
    model, x1, x2 = Branches().double(), torch.randn(3, 3).double(), torch.randn(2, 3).double()
    with pytest.warns(FallbackWarning):
        got = kernels.ntk(model, x1, x2, method=method)
    left, right = jacobians.loop_jacobians(model, x1), jacobians.loop_jacobians(model, x2)
    expected = torch.einsum("iap,jbp->ijab", left, right)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_works_for_no_sample(method: str) -> None:
    x = torch.randn(2, 1, 6, 6)
    assert kernels.ntk(cnn(), x[:0], x, method=method).shape == (0, 2, 2, 2)


def test_auto_takes_the_structure_then_jacobians_then_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def choose(model: nn.Module, data: Tensor) -> str:
        count = sum(p.numel() for p in model.parameters())
        return tangent._choose("auto", model, data, 2, count)[0]

    assert choose(cnn(), torch.randn(1, 1, 6, 6)) == "structured"
    with pytest.warns(FallbackWarning):
        kernels.ntk(Branches(), torch.randn(1, 3))
    assert choose(Branches(), torch.randn(1, 3)) == "jacobian"
    monkeypatch.setattr(tangent, "_CHUNK", 16)
    assert choose(Branches(), torch.randn(1, 3)) == "vector"
    assert choose(cnn(), torch.randn(1, 1, 6, 6)) == "vector"


def test_memory_is_bounded_by_chunks_and_not_by_samples() -> None:
    model = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 2))
    one = 4 * sum(p.numel() for p in model.parameters())  # bytes of P numbers

    def peak(n: int, **options: object) -> float:
        x = torch.randn(n, 50)
        result = 4 * (2 * n) ** 2
        return (benchmark.memory(lambda: kernels.ntk(model, x, **options)).peak - result) / one

    for method in ("jacobian", "structured"):
        few, many = (peak(n, method=method, chunk_size=2) for n in (4, 16))
        assert many < 1.1 * few
    # Factors and biases instead of P numbers for each output of each sample.
    assert peak(16, method="structured") < 16 * 2 / 4 < peak(16, method="jacobian")
    assert peak(8, method="vector", chunk_size=1) < 8


def test_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = []

    def bar(items: list, **options: object) -> list:
        totals.append(len(items))
        return items

    monkeypatch.setattr(tangent, "tqdm", bar)
    kernels.ntk(mlp(), torch.randn(6, 4), chunk_size=2)
    assert totals == [6]  # the blocks of the upper half of 3 x 3


def test_refuses_sizes_that_do_not_match() -> None:
    model = mlp()
    with pytest.raises(ValueError, match=r"one shape, got \(4,\) and \(5,\)"):
        kernels.ntk(model, torch.randn(2, 4), torch.randn(2, 5))
    with pytest.raises(TypeError, match="x2 must be a tensor"):
        kernels.ntk(model, torch.randn(2, 4), [1.0])
    with pytest.raises(ValueError, match=r"method must be 'auto', .*, got 'fast'"):
        kernels.ntk(model, torch.randn(2, 4), method="fast")
    with pytest.raises(ValueError, match="chunk_size must be"):
        kernels.ntk(model, torch.randn(2, 4), chunk_size=0)
    with pytest.raises(ValueError, match="BatchNorm in training mode"):
        kernels.ntk(cnn().train(), torch.randn(2, 1, 6, 6))


def test_refuses_what_does_not_fit_and_says_which_argument_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = mlp()
    monkeypatch.setattr(room, "_free", lambda device: 10_000)
    many = torch.randn(1, 4).expand(100, 4)
    with pytest.raises(ValueError, match=r"\(100, 100, 3, 3\) would have .* or a part of x2"):
        kernels.ntk(model, many)
    with pytest.raises(ValueError, match=r"chunk_size=9 the Jacobians .* a smaller chunk_size"):
        kernels.ntk(model, many[:12], method="jacobian", chunk_size=9)
    assert kernels.ntk(model, many[:12], method="jacobian", chunk_size=2).shape == (12, 12, 3, 3)


def test_solve_solves_and_refuses_a_singular_kernel() -> None:
    torch.manual_seed(0)
    model, x, values = mlp().double(), torch.randn(3, 4).double(), torch.randn(3, 3).double()
    kernel = kernels.ntk(model, x)
    alpha = kernels.solve(kernel, values, ridge=0.5)
    back = torch.einsum("ijab,jb->ia", kernel, alpha) + 0.5 * alpha
    torch.testing.assert_close(back, values)
    twice = kernels.ntk(model, x[[0, 1, 1]])
    with pytest.raises(ValueError, match="3 samples x 3 outputs is singular with ridge=0: two"):
        kernels.solve(twice, values)
    assert kernels.solve(twice, values, ridge=1e-3).shape == (3, 3)
    with pytest.raises(ValueError, match=r"got \(3, 3, 3, 3\) and \(2, 3\)"):
        kernels.solve(kernel, values[:2])
    with pytest.raises(ValueError, match="ridge must be at least 0"):
        kernels.solve(kernel, values, ridge=-1.0)
