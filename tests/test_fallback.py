"""What reaches a caller whose model warns, or fails by itself."""

import functools
import traceback
import warnings

import pytest
import torch

from helpers import gradients, jacobians, norms
from tests.support import zoo
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


def test_what_the_model_warns_of_is_passed_on():
    def run(self, inputs):
        warnings.warn("so it says", RuntimeWarning, stacklevel=1)
        return self.fc(inputs)

    case = zoo.make("linear")
    case.model = zoo.Apply(run, fc=case.model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gradients.func_gradients(*case.args)
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
