"""What the helpers refuse: the call, the type of the error, and the word that names the fault."""

import functools
import random
import traceback
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import gradients, jacobians, norms
from tests.support.oracle import METHODS, every_method, refused
from tests.support.ways import WAYS, empty_out
from tests.support.zoo import Apply, Case, make, squared

SUMS = norms.gradient_norms, functools.partial(norms.clipped_sum, limit=1.0)
JACOBIANS = jacobians.loop_jacobians, jacobians.func_jacobians
FUNCTIONS = [*METHODS.values(), *SUMS]
every_function = pytest.mark.parametrize("function", FUNCTIONS)
x, t = torch.zeros(3, 3), torch.zeros(3, 2)


def after(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), layer)


HOOKED = nn.Linear(3, 2)
HOOKED.weight.register_post_accumulate_grad_hook(print)
# What cannot be done with a batch of any size, or of some samples, by what the message names.
MODELS: dict[nn.Module, str] = {
    after(nn.BatchNorm1d(2)): "BatchNorm",
    after(nn.BatchNorm1d(2, track_running_stats=False).eval()): "BatchNorm",
    after(nn.SyncBatchNorm(2)): "BatchNorm",
    nn.Sequential(nn.Tanh(), nn.LazyLinear(2)): "lazy",
    HOOKED: "hook",
    after(nn.Dropout()): "random",
    after(Apply(lambda m, x: x + torch.rand(2))): "random",
    after(Apply(lambda m, x: x + random.random())): "random",
    after(Apply(lambda m, x: x + np.random.rand())): "random",  # noqa: NPY002
    Apply(lambda m, x: m.layer(x)[0], layer=nn.LSTM(3, 2, 2, dropout=0.5)): "random",
}


@pytest.mark.parametrize("function", [*FUNCTIONS, *JACOBIANS])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_refused(model, function):
    # That a model draws is seen when it runs, and with no samples it does not.
    sizes = [3] if MODELS[model] == "random" else [3, 0]
    for size in sizes:
        with refused(MODELS[model]):
            if function in JACOBIANS:
                function(model, x[:size])
            else:
                function(model, squared, x[:size], t[:size])


COUNT = nn.Parameter(torch.tensor(1), requires_grad=False)
# The type of the error, what the message names, and what differs from a right call.
CALLS: list[tuple[type[Exception], str, dict[str, object]]] = [
    (ValueError, "3 and 2", {"targets": t[:2]}),
    (ValueError, "0 and 3", {"data": x[:0]}),
    (ValueError, "targets must have a batch dimension", {"targets": t[0, 0]}),
    (ValueError, "data must have a batch dimension", {"data": x[0, 0]}),
    (ValueError, "'wieght'", {"wrt": ["bias", "wieght"]}),
    (ValueError, "'a', 3", {"wrt": ["a", 3]}),
    (ValueError, "int64", {"model": Apply(len, count=COUNT), "wrt": ["count"]}),
    (ValueError, "got (1, 2)", {"loss_fn": lambda p, t: F.mse_loss(p, t, reduction="none")}),
    (ValueError, "got tuple", {"loss_fn": lambda p, t: ((p - t).sum(), p)}),
    (ValueError, "got float", {"loss_fn": lambda p, t: 1.0}),
    (ValueError, "number, got torch.int64", {"loss_fn": lambda p, _: p.long().sum()}),
    (ValueError, "weight is on the meta device", {"model": nn.Linear(3, 2, device="meta")}),
    (TypeError, "torch.nn.Module", {"model": len}),
    (TypeError, "pass MSELoss()", {"loss_fn": nn.MSELoss}),
    (TypeError, "data must be a tensor (B, ...), got list", {"data": x.tolist()}),
    (TypeError, "targets must be a tensor (B, ...), got ndarray", {"targets": t.numpy()}),
    (TypeError, "wrt", {"wrt": "bias"}),
    (TypeError, "wrt", {"wrt": 3}),
]


@every_function
@pytest.mark.parametrize(("error", "word", "other"), CALLS)
def test_a_call_is_refused(error, word, other, function):
    right = {"model": nn.Linear(3, 2), "loss_fn": squared, "data": x, "targets": t}
    with refused(word, error=error) as raised:
        function(**(right | other))
    assert not hasattr(raised.value, "__notes__"), "it is no fault of the model"


@every_function
def test_data_of_a_transform_are_refused(function):
    model = nn.Linear(3, 2)
    with refused("data belongs to a transform"):
        torch.func.vmap(lambda data: function(model, squared, data, t))(x[None])


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("chunk_size", [0, "2", 2.0, True])
def test_a_bad_chunk_size_is_refused(chunk_size, size):
    case = make("linear", size)
    for function in (gradients.func_gradients, *SUMS):
        with refused("chunk_size", repr(chunk_size)):
            case.pass_to(function, chunk_size=chunk_size)
    with refused("chunk_size", repr(chunk_size)):
        jacobians.func_jacobians(case.model, case.data, chunk_size=chunk_size)


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("randomness", ["SAME", None])
def test_a_bad_randomness_is_refused(randomness, size):
    case = make("linear", size)
    for function in (gradients.func_gradients, *SUMS):
        with refused("randomness", repr(randomness)):
            case.pass_to(function, randomness=randomness)


OUTPUTS = {
    "(1,)": lambda m, x: m.fc(x)[:, 0],
    "(1, 1, 2)": lambda m, x: m.fc(x)[:, None],
    "()": lambda m, x: m.fc(x).sum(),
    "(3, 2)": lambda m, x: m.fc(x).repeat(3, 1),
    "tuple": lambda m, x: (m.fc(x), None),
}


@pytest.mark.parametrize("function", JACOBIANS)
@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize("got", OUTPUTS)
def test_outputs_of_another_shape_are_refused(got, batch_size, function):
    with refused(f"(B, Y), got {got}"):
        function(Apply(OUTPUTS[got], fc=nn.Linear(3, 2)), torch.randn(batch_size, 3))
    with refused("batch dimension"):
        function(nn.Linear(3, 2), x[0, 0])


Out = dict[str, Tensor]


def with_bias(change: Callable[[Tensor], object]) -> Callable[[Out, Case], object]:
    return lambda out, _: out | {"fc2.bias": change(out["fc2.bias"])}


def parameters_themselves(out: Out, case: Case) -> Out:
    """Give each sample the memory of the parameter."""
    for name, parameter in case.model.named_parameters():
        out[name] = parameter.data.expand(out[name].shape)
    return out


def one_in_another(out: Out, case: Case) -> Out:
    within = out["fc1.weight"].flatten()[:30].view(3, 10)
    return out | {"fc2.bias": within}


# By what the message names, what is done to a right `out`.
OUTS: dict[str, Callable[[Out, Case], object]] = {
    "names": lambda out, _: {"other": out["fc2.bias"]},
    "shape": with_bias(lambda b: b[:2]),
    "float32": with_bias(Tensor.float),
    "meta": with_bias(lambda b: b.to("meta")),
    "require a gradient": with_bias(lambda b: b.clone().requires_grad_()),
    "inference": with_bias(torch.inference_mode()(Tensor.clone)),
    "memory": parameters_themselves,
    "of out['fc1.weight']": one_in_another,
    "got list": lambda out, _: list(out.values()),
    "got int": with_bias(lambda b: 3),
}


@pytest.mark.parametrize("word", OUTS)
def test_a_bad_out_is_refused_before_anything_is_written(word):
    case = make("mlp")
    out = empty_out(case)
    error = TypeError if word.startswith("got") else ValueError
    with refused(word, error=error):
        case.pass_to(gradients.func_gradients, out=OUTS[word](dict(out), case))
    assert all(tensor.isnan().all() for tensor in out.values())


NO_MEMORY = {
    "torch": torch.OutOfMemoryError("no memory"),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
    "cuDNN": RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
}


@pytest.mark.parametrize("library", NO_MEMORY)
@pytest.mark.parametrize("function", [gradients.func_gradients, *SUMS])
def test_no_memory_is_no_reason_for_a_way_that_takes_more(function, library):
    ran = []

    def run(self: Apply, inputs: Tensor) -> Tensor:
        ran.append(inputs)
        raise NO_MEMORY[library]

    with pytest.raises(RuntimeError) as raised:
        function(Apply(run, fc=nn.Linear(3, 2)), squared, x, t)
    assert raised.value is NO_MEMORY[library]
    assert len(ran) == 1


FAULTS = {
    RuntimeError: lambda m, x: m.fc(x) @ torch.ones(5, 5),
    AttributeError: lambda m, x: m.fc(x) + m.nothing,
    TypeError: lambda m, x: m.fc(x) + None,
    KeyError: lambda m, x: m.fc(x) + {}[0],
}


@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("way", [way for way in WAYS if way.endswith("chunks") or "sum" in way])
def test_a_model_that_fails_by_itself_raises_its_own_error_and_nothing_of_transforms(way, error):
    model = Apply(lambda m, x: m.bad(x), bad=Apply(FAULTS[error], fc=nn.Linear(3, 2)))
    case = Case(model, torch.zeros(4, 3), torch.zeros(4, 2), squared)
    with pytest.raises(error) as raised:
        WAYS[way].compute(case, SimpleNamespace(limit=0.1))
    (note,) = raised.value.__notes__
    assert note.startswith("bad raised this for a batch of one")
    assert "torch/_functorch" not in "".join(traceback.format_exception(raised.value))


# In chunks, the first one has told by then that vmap cannot batch the model.
@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
@every_method
def test_a_model_that_fails_for_a_later_sample_says_so(method):
    def run(self: Apply, inputs: Tensor) -> Tensor:
        if inputs.max().item() == 7:
            raise LookupError("too large")
        return self.fc(inputs)

    data = torch.tensor([[0.0], [0.0], [7.0]]).expand(3, 3)
    with pytest.raises(LookupError, match="too large") as raised:
        method(Apply(run, fc=nn.Linear(3, 2)), squared, data, t)
    (note,) = raised.value.__notes__
    assert note.startswith("the model raised this for a batch of one")


def test_a_bad_option_is_refused_as_such_beside_check():
    with refused("randomness", "'SAME'"):
        make("linear").pass_to(gradients.func_gradients, randomness="SAME", check=True)
    with refused("chunk_size", "0"):
        options = {"chunk_size": 0, "randomness": "same", "check": True}
        make("linear").pass_to(gradients.func_gradients, **options)
