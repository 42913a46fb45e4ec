"""What is said where samples are taken one after the other, and where a model itself fails."""

import functools
import traceback
import warnings

import pytest
import torch

from helpers import gradients, jacobians, norms
from helpers.transforms.fallback import FallbackWarning
from tests.support import wild, zoo
from tests.support.oracle import every_method
from tests.support.ways import into_out

# Ways in chunks of one sample each.
CHUNKED = {
    "func": functools.partial(gradients.func_gradients, chunk_size=1),
    "func, out": lambda *args: into_out(zoo.Case(args[0], *args[2:], args[1]), None, chunk_size=1),
    "norms": functools.partial(norms.gradient_norms, chunk_size=1),
    "clipped sum": lambda *args: norms.clipped_sum(*args, 0.1, chunk_size=1),
    "Jacobians": lambda model, _, data, targets: jacobians.func_jacobians(
        model, data, chunk_size=1
    ),
}
every_way = pytest.mark.parametrize("way", CHUNKED.values(), ids=CHUNKED.keys())


def heard(way, case) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        way(*case.args)
    return said


@every_way
def test_each_call_says_once_what_each_of_its_chunks_meets(way):
    for _ in range(2):
        (said,) = heard(way, wild.make("item"))
        assert said.category is FallbackWarning
        assert "the model reads numbers out of tensors" in str(said.message)


@every_way
def test_an_operation_without_a_rule_is_named_with_its_module(way):
    said = {str(each.message): each.category for each in heard(way, zoo.make("bilinear"))}
    ((text, category),) = said.items()
    assert text.startswith(("Bilinear uses bilinear,", "Bilinear uses _trilinear,"))
    assert category is FallbackWarning


def test_what_the_model_warns_of_is_passed_on():
    def run(self, inputs):
        warnings.warn("so it says", RuntimeWarning, stacklevel=1)
        return self.fc(inputs)

    case = zoo.make("linear")
    case.model = zoo.Apply(run, fc=case.model)
    said = heard(gradients.func_gradients, case)
    assert {(each.category, str(each.message)) for each in said} == {(RuntimeWarning, "so it says")}


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
    shown = "".join(traceback.format_exception(raised.value))
    assert "torch/_functorch" not in shown


@every_method
def test_a_model_that_fails_for_a_later_sample_says_so(method):
    case = zoo.make("linear")
    case.data[2] = 7

    def run(self, inputs):
        if inputs.max().item() == 7:
            raise LookupError("too large")
        return self.fc(inputs)

    case.model = zoo.Apply(run, fc=case.model)
    with pytest.raises(LookupError, match="too large") as raised:
        method(*case.args)
    (note,) = raised.value.__notes__
    assert note.startswith("the model raised this for a batch of one")
