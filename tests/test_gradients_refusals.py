"""What the helpers refuse: the call, the type of the error, and what it names.

Each message names what was wrong and what would be right, in one line.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import gradients, jacobians, norms
from tests.support.oracle import METHODS, every_method
from tests.support.ways import empty_out
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


def refused(*words: str, error: type[Exception] = ValueError) -> object:
    """Expect an error of one line that holds these words."""
    return pytest.raises(
        error, check=lambda e: "\n" not in str(e) and all(w in str(e) for w in words)
    )


def norm_then(model: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), model)


DRAWS = [nn.Dropout(), nn.AlphaDropout(), Apply(lambda m, x: x + torch.rand(2))]
MIXES = [
    nn.BatchNorm1d(2),
    nn.BatchNorm1d(2, track_running_stats=False).eval(),
    nn.SyncBatchNorm(2),
]
# A model or its data, by what is wrong with them; then what the message names.
MODELS: dict[str, tuple[nn.Module, Tensor, tuple[str, ...]]] = {
    **{
        f"draws: {layer}": (norm_then(layer), x, ("draws random numbers", "eval()", "randomness="))
        for layer in DRAWS
    },
    "dropout of an LSTM": (
        Apply(lambda m, x: m.layer(x)[0], layer=nn.LSTM(3, 2, 2, dropout=0.5)),
        x,
        ("draws random numbers",),
    ),
    **{
        f"mixes: {layer}": (
            norm_then(layer),
            x,
            ("1 is BatchNorm in training mode", "model.eval()", "GroupNorm"),
        )
        for layer in MIXES
    },
    "lazy": (
        nn.Sequential(nn.Tanh(), nn.LazyLinear(2)),
        x,
        ("1.weight belongs to a lazy layer", "run the model once"),
    ),
    "no batch": (nn.Linear(3, 2), x[0, 0], ("data must have a batch dimension", "(B, ...)")),
}


@every_function
@pytest.mark.parametrize(("model", "data", "words"), MODELS.values(), ids=MODELS)
def test_a_model_is_refused(model, data, words, function):
    with refused(*words):
        function(model, squared, data, t)


@pytest.mark.parametrize("function", JACOBIANS.values(), ids=JACOBIANS)
@pytest.mark.parametrize(("model", "data", "words"), MODELS.values(), ids=MODELS)
def test_a_model_is_refused_by_jacobians(model, data, words, function):
    with refused(*words):
        function(model, data)


@pytest.mark.parametrize("function", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("model", [*MIXES, nn.LazyLinear(2)])
def test_a_model_is_refused_with_an_empty_batch_too(model, function):
    with pytest.raises(ValueError, match=r"BatchNorm in training mode|lazy layer"):
        function(model, squared, x[:0], t[:0])


NO_NAME = "which is no parameter of this model: it has weight, bias"
SCALAR = "loss_fn must return a scalar, a tensor of shape (), for a batch of one, got"
# What differs from a right call, the error, and what the message names.
CALLS: list[tuple[dict[str, object], type[Exception], tuple[str, ...]]] = [
    ({"model": len}, TypeError, ("model must be a torch.nn.Module", "builtin_function")),
    ({"targets": t[:2]}, ValueError, ("data and targets", "one batch size", "3 and 2")),
    ({"data": x[:0]}, ValueError, ("data and targets", "one batch size", "0 and 3")),
    ({"targets": t[0, 0]}, ValueError, ("targets must have a batch dimension", "()")),
    ({"data": x.tolist()}, TypeError, ("data must be a tensor (B, ...)", "list")),
    ({"data": x.numpy()}, TypeError, ("data must be a tensor (B, ...)", "ndarray")),
    ({"targets": None}, TypeError, ("targets must be a tensor (B, ...)", "NoneType")),
    ({"wrt": "bias"}, TypeError, ("wrt must be several names", "['bias']", "one string")),
    ({"wrt": ["bias", "wieght"]}, ValueError, (f"wrt names 'wieght', {NO_NAME}",)),
    ({"wrt": ["a", "b"]}, ValueError, (f"wrt names 'a', 'b', {NO_NAME}",)),
    *(
        ({"loss_fn": loss_fn}, ValueError, (f"{SCALAR} {got}", "reduction='sum' or 'mean'"))
        for loss_fn, got in [
            (lambda p, t: F.mse_loss(p, t, reduction="none"), "(1, 2)"),
            (lambda p, t: (p - t).sum(1), "(1,)"),
            (lambda p, t: ((p - t).sum(), p), "tuple"),
            (lambda p, t: 1.0, "float"),
        ]
    ),
]


@every_function
@pytest.mark.parametrize(("changes", "error", "words"), CALLS, ids=lambda value: "")
def test_a_call_is_refused(changes, error, words, function):
    right = {"model": nn.Linear(3, 2), "loss_fn": squared, "data": x, "targets": t}
    with refused(*words, error=error):
        function(**(right | changes))


CHUNK = "chunk_size must be None or a whole number, at least 1, got"
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


def _inferred(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


Spoil = Callable[[dict[str, Tensor], Case], object]
BIAS, WEIGHT = "fc2.bias", "fc1.weight"
OUTS: dict[str, tuple[Spoil, type[Exception], tuple[str, ...]]] = {
    "name": (lambda out, c: {"other": out[BIAS]}, ValueError, ("out must have the names", "other")),
    "shape": (
        lambda out, c: out | {BIAS: out[BIAS][:2]},
        ValueError,
        ("out['fc2.bias'] must have the shape (3, 10)", "(2, 10)"),
    ),
    "dtype": (
        lambda out, c: out | {BIAS: out[BIAS].float()},
        ValueError,
        ("must have dtype torch.float64, got torch.float32",),
    ),
    "device": (
        lambda out, c: out | {BIAS: out[BIAS].to("meta")},
        ValueError,
        ("must have device cpu, got meta",),
    ),
    "grad": (
        lambda out, c: out | {BIAS: out[BIAS].clone().requires_grad_()},
        ValueError,
        ("must not require a gradient",),
    ),
    "inference": (
        lambda out, c: out | {BIAS: _inferred(out[BIAS])},
        ValueError,
        ("or be made in inference mode",),
    ),
    "weights": (
        lambda out, c: {n: c.model.get_parameter(n).detach().expand(out[n].shape) for n in out},
        ValueError,
        ("out['fc1.weight'] must have memory",),
    ),
    "twice": (
        lambda out, c: out | {BIAS: out[WEIGHT].flatten()[: out[BIAS].numel()].view(3, 10)},
        ValueError,
        ("must have memory of its own, got some of out['fc1.weight']",),
    ),
    "list": (lambda out, c: [*out.values()], TypeError, ("out must be a dictionary", "list")),
    "no tensor": (lambda out, c: out | {BIAS: 3}, TypeError, ("must be a tensor, got int",)),
}


@pytest.mark.parametrize(("spoil", "error", "words"), OUTS.values(), ids=OUTS)
def test_a_bad_out_is_refused_before_anything_is_written(spoil, error, words):
    case = make("mlp")
    out = empty_out(case)
    with refused(*words, error=error):
        gradients.func_gradients(*case.args, out=spoil(out, case))
    assert all(tensor.isnan().all() for tensor in out.values())


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda out: out[..., 1:], ValueError, ("out must have the shape ({size}, 10, 15910)",)),
        (lambda out: out.float(), ValueError, ("out must have dtype torch.float64",)),
        (lambda out: [out], TypeError, ("out must be a tensor, got list",)),
        (lambda out: out.requires_grad_(), ValueError, ("must not require a gradient",)),
        (
            lambda out: out.new_zeros(1).expand(out.shape),
            ValueError,
            ("out must have memory for each number, got an expanded tensor",),
        ),
    ],
    ids=["shape", "dtype", "list", "grad", "expanded"],
)
def test_a_bad_out_of_jacobians_is_refused(spoil, error, words, size):
    case = make("mlp", size)
    out = spoil(torch.empty(size, 10, 15910, dtype=torch.float64))
    with refused(*(word.replace("{size}", str(size)) for word in words), error=error):
        jacobians.func_jacobians(case.model, case.data, out=out)


@pytest.mark.parametrize("shape", [(2, 3, 7), (9, 2), ()], ids=str)
def test_unflatten_refuses_another_number_of_columns(shape):
    with refused("the last dimension must be P = 8", f"got shape {shape}"):
        jacobians.unflatten_jacobians(torch.zeros(shape), nn.Linear(3, 2))


@every_method
def test_a_refusal_is_no_fault_of_the_model(method):
    with pytest.raises(ValueError, match="must return a scalar") as raised:
        method(nn.Linear(3, 2), lambda p, t: p, x, t)
    assert not hasattr(raised.value, "__notes__")


def test_no_memory_is_no_reason_for_a_way_that_takes_more():
    ran = []

    def run(self: Apply, inputs: Tensor) -> Tensor:
        ran.append(inputs)
        raise torch.OutOfMemoryError("no memory")

    for function in (gradients.func_gradients, *SUMS.values()):
        ran.clear()
        with pytest.raises(torch.OutOfMemoryError, match="no memory"):
            function(Apply(run, fc=nn.Linear(3, 2)), squared, x, t)
        assert len(ran) == 1
