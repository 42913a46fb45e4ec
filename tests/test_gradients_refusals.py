"""What the helpers refuse: the call, the type of the error, and what it names.

Each message names what was wrong and what would be right, in one line.
"""

import functools
import random
import traceback
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import gradients, jacobians, norms
from tests.support.oracle import METHODS, every_method, refused
from tests.support.ways import empty_out, into_out
from tests.support.zoo import Apply, Case, make, squared

SUMS = {
    "norms": norms.gradient_norms,
    "clipped sum": lambda *args, **options: norms.clipped_sum(*args, limit=1.0, **options),
}
JACOBIANS = {
    "loop": jacobians.loop_jacobians,
    "func": jacobians.func_jacobians,
}
every_function = pytest.mark.parametrize("function", [*METHODS.values(), *SUMS.values()])
x, t = torch.zeros(3, 3), torch.zeros(3, 2)


def after(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), layer)


DRAWS = "draws random numbers", "eval()", "randomness="
MIXES = "1 is BatchNorm in training mode", "model.eval()", "GroupNorm"
LAZY = "1.weight belongs to a lazy layer", "run the model once"
HOOKED = nn.Linear(3, 2)
HOOKED.weight.register_post_accumulate_grad_hook(print)
# What cannot be done with a batch of any size, and what each names.
MODELS: dict[nn.Module, tuple[str, ...]] = {
    after(nn.BatchNorm1d(2)): MIXES,
    after(nn.BatchNorm1d(2, track_running_stats=False).eval()): MIXES,
    after(nn.SyncBatchNorm(2)): MIXES,
    nn.Sequential(nn.Tanh(), nn.LazyLinear(2)): LAZY,
    HOOKED: ("weight has", "hook", "remove"),
}
RANDOM: dict[nn.Module, tuple[str, ...]] = {
    after(nn.Dropout()): DRAWS,
    after(nn.AlphaDropout()): DRAWS,
    after(Apply(lambda m, x: x + torch.rand(2))): DRAWS,
    after(Apply(lambda m, x: x + random.random())): DRAWS,
    after(Apply(lambda m, x: x + np.random.rand())): DRAWS,  # noqa: NPY002
    Apply(lambda m, x: m.layer(x)[0], layer=nn.LSTM(3, 2, 2, dropout=0.5)): DRAWS[:1],
}


@pytest.mark.parametrize("function", [*METHODS.values(), *SUMS.values(), *JACOBIANS.values()])
@pytest.mark.parametrize("model", MODELS | RANDOM)
def test_a_model_is_refused(model, function):
    for size in (3, 0) if model in MODELS else (3,):
        with refused(*(MODELS | RANDOM)[model]):
            if function in JACOBIANS.values():
                function(model, x[:size])
            else:
                function(model, squared, x[:size], t[:size])


NO_NAME = "which is no parameter of this model: it has weight, bias"
SCALAR = "loss_fn must return a scalar, a tensor of shape (), for a batch of one, got"
# By what the message names, what differs from a right call.
CALLS: dict[str, dict[str, object]] = {
    "data and targets must have one batch size, got 3 and 2": {"targets": t[:2]},
    "data and targets must have one batch size, got 0 and 3": {"data": x[:0]},
    "targets must have a batch dimension": {"targets": t[0, 0]},
    "data must have a batch dimension, (B, ...)": {"data": x[0, 0]},
    f"wrt names 'wieght', {NO_NAME}": {"wrt": ["bias", "wieght"]},
    f"wrt names 'a', 'b', {NO_NAME}": {"wrt": ["a", "b"]},
    f"wrt names 'a', 3, {NO_NAME}": {"wrt": ["a", 3]},
    "wrt names count, which has no gradient: it is torch.int64": {
        "model": Apply(len, count=nn.Parameter(torch.tensor(1), requires_grad=False)),
        "wrt": ["count"],
    },
    f"{SCALAR} (1, 2)": {"loss_fn": lambda p, t: F.mse_loss(p, t, reduction="none")},
    f"{SCALAR} (1,)": {"loss_fn": lambda p, t: (p - t).sum(1)},
    f"{SCALAR} tuple": {"loss_fn": lambda p, t: ((p - t).sum(), p)},
    f"{SCALAR} float": {"loss_fn": lambda p, t: 1.0},
}
OF_TYPES: dict[str, dict[str, object]] = {
    "model must be a torch.nn.Module": {"model": len},
    "data must be a tensor (B, ...), got list": {"data": x.tolist()},
    "data must be a tensor (B, ...), got ndarray": {"data": x.numpy()},
    "targets must be a tensor (B, ...), got ndarray": {"targets": t.numpy()},
    "wrt must be several names": {"wrt": "bias"},
    "wrt must be names of parameters, got int": {"wrt": 3},
}


@every_function
@pytest.mark.parametrize("words", CALLS | OF_TYPES)
def test_a_call_is_refused(words, function):
    right = {"model": nn.Linear(3, 2), "loss_fn": squared, "data": x, "targets": t}
    with refused(words, error=TypeError if words in OF_TYPES else ValueError) as raised:
        function(**(right | (CALLS | OF_TYPES)[words]))
    assert not hasattr(raised.value, "__notes__"), "it is no fault of the model"


CHUNK = "chunk_size must be a whole number, at least 1, got"
RANDOMNESS = "randomness must be 'error', 'different' or 'same', got"


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        *(("chunk_size", value, f"{CHUNK} {value!r}") for value in (0, -1, "2", 2.0, True)),
        *(("randomness", value, f"{RANDOMNESS} {value!r}") for value in ("SAME", None, True)),
    ],
)
def test_an_option_is_refused(option, value, words, size):
    case = make("linear", size)
    for function in (gradients.func_gradients, *SUMS.values()):
        with refused(words):
            function(*case.args, **{option: value})
    if option == "chunk_size":
        with refused(words):
            jacobians.func_jacobians(case.model, case.data, chunk_size=value)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_a_bad_limit_is_refused(limit):
    with refused("limit must be a finite Python number above 0, got"):
        norms.clipped_sum(*make("mlp").args, limit)


OUTPUTS = [
    (lambda m, x: m.fc(x)[:, 0], "(1,)"),
    (lambda m, x: m.fc(x)[:, None], "(1, 1, 2)"),
    (lambda m, x: m.fc(x).sum(), "()"),
    (lambda m, x: m.fc(x).repeat(3, 1), "(3, 2)"),
    (lambda m, x: (m.fc(x), None), "tuple"),
]


@pytest.mark.parametrize("function", JACOBIANS.values(), ids=JACOBIANS)
@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize(("forward", "got"), OUTPUTS, ids=[got for _, got in OUTPUTS])
def test_outputs_of_another_shape_are_refused(forward, got, batch_size, function):
    with refused(f"the model must return outputs (B, Y), got {got} for a batch of one"):
        function(Apply(forward, fc=nn.Linear(3, 2)), torch.randn(batch_size, 3))
    with refused("data must have a batch dimension, (B, ...)"):
        function(nn.Linear(3, 2), x[0, 0])


BIAS, WEIGHT = "fc2.bias", "fc1.weight"


def with_bias(change: Callable[[Tensor], object]) -> Callable[[dict[str, Tensor], Case], object]:
    return lambda out, _: out | {BIAS: change(out[BIAS])}


# By what the message names, what is done to a right `out`.
OUTS: dict[str, Callable[[dict[str, Tensor], Case], object]] = {
    "out must have the names fc1.weight, ": lambda out, c: {"other": out[BIAS]},
    "['fc2.bias'] must have the shape (3, 10), got (2, 10)": with_bias(lambda b: b[:2]),
    "must have dtype torch.float64, got torch.float32": with_bias(Tensor.float),
    "must have device cpu, got meta": with_bias(lambda b: b.to("meta")),
    "must not require a gradient": with_bias(lambda b: b.clone().requires_grad_()),
    "or be made in inference mode": with_bias(torch.inference_mode()(Tensor.clone)),
    "out['fc1.weight'] must have memory": (
        lambda out, c: {n: c.model.get_parameter(n).detach().expand(out[n].shape) for n in out}
    ),
    "must have memory of its own, got some of out['fc1.weight']": (
        lambda out, c: out | {BIAS: out[WEIGHT].flatten()[: out[BIAS].numel()].view(3, 10)}
    ),
    "out must be a dictionary of tensors by name, got list": lambda out, c: [*out.values()],
    "must be a tensor, got int": with_bias(lambda b: 3),
}


@pytest.mark.parametrize("words", OUTS)
def test_a_bad_out_is_refused_before_anything_is_written(words):
    case = make("mlp")
    out = empty_out(case)
    with refused(words, error=TypeError if words.endswith(("list", "int")) else ValueError):
        gradients.func_gradients(*case.args, out=OUTS[words](out, case))
    assert all(tensor.isnan().all() for tensor in out.values())


@pytest.mark.parametrize("shape", [(2, 3, 7), (9, 2), ()], ids=str)
def test_unflatten_refuses_another_number_of_columns(shape):
    with refused("the last dimension must be P = 8", f"got shape {shape}"):
        jacobians.unflatten_jacobians(torch.zeros(shape), nn.Linear(3, 2))


@pytest.mark.parametrize("function", [gradients.func_gradients, *SUMS.values()])
def test_no_memory_is_no_reason_for_a_way_that_takes_more(function):
    ran = []

    def run(self: Apply, inputs: Tensor) -> Tensor:
        ran.append(inputs)
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        function(Apply(run, fc=nn.Linear(3, 2)), squared, x, t)
    assert len(ran) == 1


# What reaches a caller whose model warns, or fails by itself.

ONE = {"chunk_size": 1}
CHUNKED = {
    "func": functools.partial(gradients.func_gradients, **ONE),
    "func, out": lambda *args: into_out(Case(args[0], *args[2:], args[1]), None, **ONE),
    "norms": functools.partial(norms.gradient_norms, **ONE),
    "clipped sum": functools.partial(norms.clipped_sum, limit=0.1, **ONE),
    "Jacobians": lambda model, _, data, __: jacobians.func_jacobians(model, data, **ONE),
}


def test_what_the_model_warns_of_is_passed_on():
    def run(self: Apply, inputs: Tensor) -> Tensor:
        warnings.warn("so it says", RuntimeWarning, stacklevel=1)
        return self.fc(inputs)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gradients.func_gradients(Apply(run, fc=nn.Linear(3, 2)), squared, x, t)
    assert {(each.category, str(each.message)) for each in said} == {(RuntimeWarning, "so it says")}


FAULTS = {
    RuntimeError: lambda m, x: m.fc(x) @ torch.ones(5, 5),
    AttributeError: lambda m, x: m.fc(x) + m.nothing,
    TypeError: lambda m, x: m.fc(x) + None,
    KeyError: lambda m, x: m.fc(x) + {}[0],
}


@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("way", CHUNKED.values(), ids=CHUNKED)
def test_a_model_that_fails_by_itself_raises_its_own_error_and_nothing_of_transforms(way, error):
    model = Apply(lambda m, x: m.bad(x), bad=Apply(FAULTS[error], fc=nn.Linear(3, 2)))
    with pytest.raises(error) as raised:
        way(model, squared, x, t)
    (note,) = raised.value.__notes__
    assert note.startswith("bad raised this for a batch of one")
    assert "torch/_functorch" not in "".join(traceback.format_exception(raised.value))


@every_method
def test_a_model_that_fails_for_a_later_sample_says_so(method):
    def run(self: Apply, inputs: Tensor) -> Tensor:
        if inputs.max().item() == 7:
            raise LookupError("too large")
        return self.fc(inputs)

    data = torch.tensor([[0.0] * 3, [0.0] * 3, [7.0] * 3])
    with pytest.raises(LookupError, match="too large") as raised:
        method(Apply(run, fc=nn.Linear(3, 2)), squared, data, t)
    (note,) = raised.value.__notes__
    assert note.startswith("the model raised this for a batch of one")
