"""Without a private name of torch that the engine uses, the next way is taken, and is right."""

import sys

import pytest
import torch

from helpers import gradients, norms
from helpers.transforms.fallback import FallbackWarning
from tests.support import zoo
from tests.support.ways import empty_out


@pytest.mark.parametrize("name", ["cnn", "embedding", "tied weight"])
def test_without_them_gradients_are_formed(name, monkeypatch):
    def compute():
        case = zoo.make(name)
        out = empty_out(case)
        case.pass_to(gradients.func_gradients, out=out)
        return case.pass_to(norms.gradient_norms), out

    expected = compute()
    for module in ("torch._C._functorch", "torch._functorch.pyfunctorch"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.warns(FallbackWarning, match="recorded"):
                found = compute()
        torch.testing.assert_close(found, expected)


class Gone:
    """An attribute that is there no more."""

    def __get__(self, instance, owner=None):
        raise AttributeError("it has gone")

    __set__ = __get__


@pytest.mark.parametrize("name", ["_swap_tensor_impl", "_backward_hooks"])
def test_without_it_the_loop_is_taken(name, monkeypatch):
    case = zoo.make("linear")
    if name == "_backward_hooks":
        case.model.weight.register_hook(lambda gradient: 2 * gradient)
        monkeypatch.setattr(torch.Tensor, name, Gone(), raising=False)
    else:
        monkeypatch.delattr(torch._C, name)
    expected = case.pass_to(gradients.loop_gradients)
    for out in (None, empty_out(case)):
        with pytest.warns(FallbackWarning):
            found = case.pass_to(gradients.func_gradients, out=out)
        torch.testing.assert_close(found, expected)
