"""What is said where samples are taken one after the other, and where a model itself fails."""

import contextlib
import functools
import traceback
import warnings

import pytest
import torch
from torch import nn

from helpers import gradients, jacobians, norms
from helpers.transforms.fallback import FallbackWarning
from tests import test_damage
from tests.support import wild, zoo
from tests.test_damage import MAKE, WAYS

# Ways in chunks of one sample each.
CHUNKED = {
    "func": functools.partial(gradients.func_gradients, chunk_size=1),
    "func into out": functools.partial(WAYS["func into out"], chunk_size=1),
    "norms": functools.partial(norms.gradient_norms, chunk_size=1),
    "clipped sum": lambda *args: norms.clipped_sum(*args, 0.1, chunk_size=1),
    "Jacobians": lambda model, _, data, targets: jacobians.func_jacobians(
        model, data, chunk_size=1
    ),
}
HERE = (__file__, test_damage.__file__)
every_way = pytest.mark.parametrize("way", CHUNKED.values(), ids=CHUNKED.keys())


def heard(way, case) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        way(*case.args)
    return said


@every_way
def test_a_call_says_once_what_each_of_its_chunks_meets(way):
    (said,) = heard(way, wild.make("item"))
    assert said.category is FallbackWarning
    assert "the model reads numbers out of tensors" in str(said.message)
    assert said.filename in HERE


@every_way
def test_the_next_call_says_it_again(way):
    assert len(heard(way, wild.make("item"))) == len(heard(way, wild.make("item"))) == 1


@every_way
def test_an_operation_without_a_rule_is_named_with_its_module(way):
    said = {str(each.message): each for each in heard(way, zoo.make("bilinear"))}
    operation = "bilinear" if any("uses bilinear" in text for text in said) else "_trilinear"
    assert list(said) == [
        f"Bilinear uses {operation}, which torch.vmap takes one sample after the other: "
        "that is slower"
    ]
    (warning,) = said.values()
    assert warning.category is FallbackWarning
    assert warning.filename in HERE


def test_what_the_model_warns_of_is_passed_on():
    def run(self, inputs):
        warnings.warn("so it says", RuntimeWarning, stacklevel=1)
        return self.fc(inputs)

    case = zoo.make("linear")
    case.model = zoo.Apply(run, fc=case.model)
    (said,) = heard(gradients.func_gradients, case)
    assert (said.category, str(said.message)) == (RuntimeWarning, "so it says")


@pytest.mark.parametrize("name", MAKE)
def test_no_text_of_torch_reaches_a_caller(name):
    case = MAKE[name]()
    if isinstance(case.model, torch.jit.ScriptModule | nn.DataParallel):
        pytest.skip("its own warnings")
    said = []
    for way in CHUNKED.values():
        with contextlib.suppress(ValueError):  # Jacobians want outputs (B, Y)
            said = [str(each.message) for each in heard(way, case)]
        assert not any("performance drop" in text or "aten::" in text for text in said)


def broken(self, inputs):
    return self.fc(inputs) @ torch.ones(5, 5, dtype=inputs.dtype)


@every_way
def test_a_model_that_fails_by_itself_raises_its_own_error_and_nothing_of_transforms(way):
    case = zoo.make("linear")
    case.model = zoo.Apply(lambda m, x: m.bad(x), bad=zoo.Apply(broken, fc=case.model))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as raised:
        way(*case.args)
    assert raised.value.__notes__ == [
        "bad raised this for a batch of one, without any transform: mend the model or the loss"
    ]
    assert "vmap" not in "".join(traceback.format_exception(raised.value)).replace(
        "by_vmap", ""
    ).replace("vmapped", "")


@pytest.mark.parametrize("way", [gradients.loop_gradients, *CHUNKED.values()])
def test_a_model_that_fails_for_a_later_sample_says_so(way):
    case = zoo.make("linear")
    case.data[2] = 7

    def run(self, inputs):
        if inputs.max().item() == 7:
            raise LookupError("too large")
        return self.fc(inputs)

    case.model = zoo.Apply(run, fc=case.model)
    with pytest.raises(LookupError, match="too large") as raised:
        way(*case.args)
    (note,) = raised.value.__notes__
    assert note.startswith("the model raised this for a batch of one")


@pytest.mark.parametrize("way", [gradients.loop_gradients, gradients.func_gradients])
def test_a_refusal_is_left_as_it_is(way):
    case = zoo.make("linear")
    with pytest.raises(ValueError, match="loss_fn must return a scalar") as raised:
        way(case.model, lambda z, y: z, *case.batch)
    assert not hasattr(raised.value, "__notes__")
