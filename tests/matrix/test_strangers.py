"""Models of strangers that the engine once met with a wrong number, a wrong error or a detour."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad
from torch.nn.utils.parametrizations import spectral_norm

from helpers import gradients, norms
from helpers.transforms.fallback import FallbackWarning
from tests.support.zoo import Apply, Case

pytestmark = pytest.mark.filterwarnings(f"error::{FallbackWarning.__module__}.FallbackWarning")


def total(outputs: Tensor, _: None) -> Tensor:
    return outputs.square().sum()


class Attends(nn.Module):
    """Attention to keys that are broadcast over two groups of queries within a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(1, 2, 7, 6))

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x.reshape(2, 2, 2, 6), self.keys, self.keys)


class NoPositions(nn.Module):
    """A layer that is also called with no position at all."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layer(x[:, :0]), self.layer(x)], 1)


MODELS = {
    "attention": (Attends, (4, 12)),
    "no positions": (lambda: NoPositions(nn.Linear(3, 2)), (5, 3)),
    "spectral norm": (lambda: spectral_norm(nn.Linear(3, 2)), (3,)),
}


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_recorded_as_it_is(name, chunk_size):
    build, shape = MODELS[name]
    torch.manual_seed(0)
    model, data = build(), torch.randn(5, *shape)
    expected = gradients.loop_gradients(model, total, data)
    out = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
    gradients.func_gradients(model, total, data, out=out, chunk_size=chunk_size)
    torch.testing.assert_close(out, expected)
    lengths = torch.cat([tensor.flatten(1) for tensor in expected.values()], 1).norm(dim=1)
    found = norms.gradient_norms(model, total, data, chunk_size=chunk_size)
    torch.testing.assert_close(found, lengths)


class Dot(torch.autograd.Function):
    """A product whose gradients are the tensors that it saved."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, output_grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return b, a


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(3))
        self.b = nn.Parameter(2 * torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return Dot.apply(self.a, self.b) + 0 * x.sum()


@pytest.mark.parametrize("batch_size", [1, 2])
def test_gradients_are_no_parameters(batch_size):
    case = Case(Products(), torch.ones(batch_size, 2), None, lambda outputs, _: outputs)
    found = gradients.func_gradients(case.model, case.loss_fn, case.data)
    found["a"].zero_()
    assert case.model.b.eq(2).all()
    out = {name: torch.empty(batch_size, 3) for name in ("a", "b")}
    gradients.func_gradients(case.model, case.loss_fn, case.data, out=out)
    assert not out["a"].requires_grad
    assert not norms.gradient_norms(case.model, case.loss_fn, case.data).requires_grad


class Criterion:
    """A loss with state, in an object that is no module."""

    def __init__(self) -> None:
        self.running = nn.Module()
        self.running.register_buffer("mean", torch.zeros(()))

    def __call__(self, outputs: Tensor, _: None) -> Tensor:
        self.running.mean = 0.9 * self.running.mean + outputs.mean()
        return (outputs * self.running.mean.detach()).sum()

    def as_a_method(self, outputs: Tensor, _: None) -> Tensor:
        return self(outputs, None)


@pytest.mark.parametrize("name", ["called", "a method"])
def test_a_loss_in_a_plain_object_keeps_no_state_between_samples(name):
    criterion = Criterion()
    loss_fn = criterion if name == "called" else criterion.as_a_method
    model, data = nn.Linear(3, 2), torch.randn(4, 3)
    expected = gradients.func_gradients(model, loss_fn, data)
    for chunk_size in (1, 2):
        found = gradients.func_gradients(model, loss_fn, data, chunk_size=chunk_size)
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients.loop_gradients(model, loss_fn, data), expected)
    assert criterion.running.mean == 0


def test_a_call_within_a_transform_is_refused():
    model, data = nn.Linear(3, 2), torch.randn(4, 3)

    def compute(scale: Tensor) -> Tensor:
        return scale * gradients.func_gradients(model, total, data)["weight"].sum()

    with pytest.raises(ValueError, match="within a transform"):
        grad(compute)(torch.ones(()))


def test_errors_that_are_each_others_cause_end():
    def fail(model: nn.Module, x: Tensor) -> Tensor:
        first, second = KeyError("first"), KeyError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    with pytest.raises(KeyError, match="first"):
        gradients.loop_gradients(Apply(fail, fc=nn.Linear(3, 2)), total, torch.ones(2, 3))
