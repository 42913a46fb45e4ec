"""What the functions of `helpers.gradients` promise besides values and the model as it was."""

import dataclasses
import functools
import itertools
import random
import types
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from helpers import gradients, norms
from tests.support import wild
from tests.support.oracle import (
    METHODS,
    TOLERANCE,
    Truth,
    assert_equal,
    every_method,
    oracle,
    refused,
)
from tests.support.ways import LOOP, WAYS, empty_out
from tests.support.zoo import Apply, Case, make, squared

pytestmark = pytest.mark.filterwarnings("ignore")


@every_method
@pytest.mark.parametrize(
    "wrt", [["2.bias", "0.weight", "2.weight"], ("2.weight",), ["0.weight", "0.weight"], []]
)
def test_wrt_chooses_names_and_order_frozen_ones_too(wrt, method):
    case = make("frozen")  # 0.weight and 2.bias
    expected = case.pass_to(oracle, wrt=dict.fromkeys(wrt))

    def look(model: nn.Module, inputs: object) -> None:
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad == (name in wrt)

    case.model.register_forward_pre_hook(look)
    assert_equal(case.pass_to(method, wrt=wrt), expected, TOLERANCE)
    assert_equal(case.pass_to(method, wrt=iter(wrt)), expected, TOLERANCE)


@every_method
@pytest.mark.parametrize("name", ["fc.weight", "first.bias"])
def test_wrt_of_a_part_that_a_backward_within_the_backward_meets(name, method):
    case = wild.make("checkpoint reentrant")
    expected = Truth(functools.partial(wild.make, "checkpoint reentrant")).gradients[name]
    assert_equal(case.pass_to(method, wrt=[name]), {name: expected}, TOLERANCE)


def test_the_loop_does_not_run_all_samples_again_for_a_gradient_that_is_zero():
    case, runs = make("mlp", 8), []
    case.model.register_forward_pre_hook(lambda *_: runs.append(1))
    name, _ = [*case.model.named_parameters()][-1]
    case.loss_fn = lambda p, t: 0 * squared(p, t)
    assert not gradients.loop_gradients(*case.args, wrt=[name])[name].any()
    assert len(runs) == 8
    runs.clear()
    case.model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    assert not gradients.loop_gradients(*case.args, wrt=["unused"])["unused"].any()
    assert len(runs) <= 9  # the first one again, with all parameters


@pytest.mark.parametrize("trained", [False, True])
def test_what_is_scripted_is_right_whatever_has_run_before(trained):
    """What the compiler optimizes for one kind of run is wrong in another."""
    product = torch.jit.CompilationUnit("def f(x, w, b):\n    return x @ w.t() + b\n").f
    layer = make("linear").model
    model = Apply(lambda m, x: product(x, m.fc.weight, m.fc.bias).tanh(), fc=layer)
    plain = Apply(lambda m, x: m.fc(x).tanh(), fc=layer)
    data, targets = make("linear").batch
    if trained:
        for _ in range(3):
            squared(model(data[:1]), targets[:1]).backward()
    for way in ("func", "func, out", "func Jacobians", LOOP) * 3:
        got = WAYS[way].compute(Case(model, data, targets, squared), None)
        expected = WAYS[way].compute(Case(plain, data, targets, squared), None)
        assert_equal(got, expected, TOLERANCE)


@every_method
def test_a_stored_iterator_begins_anew_for_each_sample(method):
    case, steps = make("linear"), (step for step in (2, 3))
    layer = case.model
    case.model = Apply(lambda m, x: m.fc(x) * 2, fc=layer)
    expected = case.pass_to(oracle)
    case.model = Apply(lambda m, x: m.fc(x) * next(m.steps), fc=layer, steps=steps)
    assert_equal(case.pass_to(method), expected, TOLERANCE)
    assert next(case.model.steps) == 2


class Centered(nn.Module):
    center = torch.zeros(2).double()

    def forward(self, predictions: Tensor, targets: Tensor) -> Tensor:
        self.center = 0.5 * self.center + 0.5 * predictions.detach().mean(0)
        return squared((predictions - self.center).tanh(), targets)


@pytest.mark.parametrize("way", [name for name in WAYS if "computer" not in name])
def test_a_loss_with_state_begins_anew_for_each_sample(way):
    def case(size: int = 3) -> Case:
        plain = make("linear", size)
        plain.loss_fn = lambda p, t: Centered()(p, t)  # a new one for each sample
        return plain

    way, truth, loss = WAYS[way], Truth(case), Centered()

    def in_a_closure(predictions: Tensor, targets: Tensor) -> Tensor:
        return loss(predictions, targets)

    def in_a_default(predictions: Tensor, targets: Tensor, one: Centered = loss) -> Tensor:
        return one(predictions, targets)

    # A batch of another size in between, so that what was kept would not fit.
    for size, loss_fn in ((3, loss), (2, in_a_closure), (3, loss.forward), (3, in_a_default)):
        got = way.compute(dataclasses.replace(case(size), loss_fn=loss_fn), truth)
        assert vars(loss).keys() == vars(Centered()).keys()
        if size == 3:
            assert_equal(got, way.expected(truth), TOLERANCE)


@every_method
def test_a_forward_pass_that_freezes_a_layer(method):
    def run(self: Apply, inputs: Tensor) -> Tensor:
        self.fc.requires_grad_(False)
        return self.head(self.fc(inputs))

    case = make("linear")
    case.model = Apply(run, fc=case.model, head=nn.Linear(2, 2).double())
    grads = case.pass_to(method)
    assert list(grads) == ["fc.weight", "fc.bias", "head.weight", "head.bias"]
    for name, grad in grads.items():
        assert grad.any() == name.startswith("head"), name


@pytest.mark.parametrize("way", ["loop", "func", "func, out"])
def test_autocast_around_the_call_and_in_it(way):
    def run(self: Apply, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            inputs = self.first(inputs)
        return self.fc(inputs).float()

    case = make("linear")
    case.model = Apply(run, first=nn.Linear(3, 3), fc=nn.Linear(3, 2))
    case.data, case.targets = case.data.float(), case.targets.float()
    with torch.autocast("cpu", torch.bfloat16):
        got = WAYS[way].compute(case, None)
        expected = case.pass_to(oracle)
    assert_equal(got, expected, 0.02)


@pytest.mark.parametrize("way", ["loop", "func", "func, out", "norms", "norms, chunks"])
def test_a_loss_without_a_graph_is_warned_of_unless_a_sample_has_one(way):
    case = make("linear")
    first = case.targets[0].clone()

    def loss_fn(predictions: Tensor, targets: Tensor) -> Tensor:
        if (targets == first).all():
            return predictions.new_zeros(())
        return squared(predictions, targets)

    case.loss_fn = loss_fn
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the loss depends")
        WAYS[way].compute(case, None)
    case.model = Apply(lambda m, x: m.fc(x).detach(), fc=case.model)
    with pytest.warns(UserWarning, match="depends on none of the selected parameters"):
        WAYS[way].compute(case, None)


@every_method
def test_while_loop_is_refused(method):
    """Torch's own derivative of it is wrong, without any transform."""

    def run(self: Apply, inputs: Tensor) -> Tensor:
        def step(i, x):
            return i + 1, self.fc(x).cos()

        return while_loop(lambda i, x: i < 2, step, (torch.tensor(0), inputs))[1]

    # Dynamo wraps the refusal, torch 2.11 in a message that no longer quotes it.
    with pytest.raises(Exception, match=r"wrong gradients|Refusal") as raised:
        method(Apply(run, fc=nn.Linear(3, 3)), squared, torch.ones(4, 3), torch.ones(4, 3))
    assert not hasattr(raised.value, "__notes__"), "the model is not to blame"


@every_method
def test_a_parameter_that_is_shared_in_the_data(method):
    case, scale = make("linear"), nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    layer = case.model
    case.model = Apply(lambda m, x: m.fc(x) * m.scale, fc=layer, scale=scale)
    expected = case.pass_to(oracle)
    case.model = Apply(lambda m, batch: m.fc(batch[0]) * batch[1], fc=layer, scale=scale)
    case.data = [case.data, scale]
    assert_equal(case.pass_to(method), expected, TOLERANCE)


def test_a_rounding_is_no_gradient_that_transforms_have_missed():
    factors = itertools.cycle([0.0, 1e-9])  # a rounding where each second forward is another way

    def run(self: Apply, inputs: Tensor) -> Tensor:
        return self.fc(inputs) + self.head(inputs) * next(factors)

    model = Apply(run, fc=nn.Linear(3, 2), head=nn.Linear(3, 2))
    with warnings.catch_warnings(action="error"):
        gradients.func_gradients(model, squared, torch.randn(1, 3), torch.randn(1, 2))


@every_method
def test_nothing_to_differentiate(method):
    case = make("linear")
    case.model.requires_grad_(False)
    assert case.pass_to(method) == {}
    assert method(nn.Flatten(), squared, case.data, case.data) == {}


def test_an_empty_batch_leaves_nothing_to_do():
    case = make("mlp", 0)
    out = empty_out(case)
    assert case.pass_to(gradients.func_gradients, out=out) == out
    assert case.pass_to(gradients.func_gradients, wrt=[], out={}) == {}
    assert case.pass_to(norms.gradient_norms).shape == (0,)
    zeros = {name: torch.zeros_like(p) for name, p in case.model.named_parameters()}
    assert_equal(case.pass_to(norms.clipped_sum, 1.0), zeros, 0)
    assert make("mlp").pass_to(norms.gradient_norms, wrt=[]).tolist() == [0.0, 0.0, 0.0]
    assert make("mlp").pass_to(norms.clipped_sum, 1.0, wrt=[]) == {}


@every_method
def test_each_parameter_keeps_its_dtype(method):
    model = Apply(lambda m, x: m.fc(x) * m.scale, fc=nn.Linear(3, 2))
    model.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    got = method(model, squared, torch.randn(2, 3), torch.randn(2, 2))
    assert got["scale"].dtype == torch.float64
    assert got["fc.weight"].dtype == torch.float32
    rows = torch.ones(2, 3, dtype=torch.bfloat16)
    half = method(nn.Linear(3, 3).bfloat16(), squared, rows, rows)
    assert {tensor.dtype for tensor in half.values()} == {torch.bfloat16}


@every_method
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_sparse_gradient_comes_dense(kind, method):
    """A layer for large vocabularies; its gradient is one of few rows, some of them twice."""
    words, targets = torch.tensor([[1, 1, 0], [2, 3, 5]]), torch.randn(2, 3).double()

    def loss_fn(vectors: Tensor, target: Tensor) -> Tensor:
        return squared(vectors.reshape(1, -1, 3).sum(1), target)

    model = kind(6, 3, sparse=True).double()
    dense = oracle(kind(6, 3, _weight=model.weight.detach()), loss_fn, words, targets)
    got = method(model, loss_fn, words, targets)
    assert_equal(got, dense, TOLERANCE)
    assert got["weight"].layout is torch.strided


@every_method
def test_data_in_any_memory_order_and_with_a_graph(method):
    case = make("grouped")
    expected = case.pass_to(oracle)
    turned = case.data.permute(1, 3, 2, 0).contiguous()
    case.data = turned.permute(3, 0, 2, 1).requires_grad_()
    case.targets = case.targets.T.contiguous().T.requires_grad_()
    got = case.pass_to(method)
    assert_equal(got, expected, TOLERANCE)
    assert not any(tensor.requires_grad for tensor in got.values())
    assert case.data.grad is None
    assert case.targets.grad is None


@pytest.mark.parametrize("name", ["scalars", "cnn", "tied weight", "embedding"])
def test_results_are_written_into_any_memory(name):
    """Into that of an earlier call, and into some whose dimensions lie in another order.

    `wrt` chooses and orders what is written; `out` has the order of the model.
    """
    case = make(name)
    earlier = case.pass_to(gradients.func_gradients)
    turned = {}  # the last dimension first
    for parameter_name, parameter in case.model.named_parameters():
        reversed_shape = (3, *parameter.shape)[::-1]
        memory = torch.empty(reversed_shape, dtype=parameter.dtype)
        turned[parameter_name] = memory.permute(list(range(memory.dim()))[::-1])
    names = list(earlier)
    for memory, wrt in ((earlier, names), (turned, names[:0:-1])):
        out = {n: tensor.fill_(torch.nan) for n, tensor in memory.items() if n in wrt}
        got = case.pass_to(gradients.func_gradients, wrt=wrt, out=out)
        assert_equal(got, case.pass_to(oracle, wrt=wrt), TOLERANCE)


@every_method
@pytest.mark.parametrize("build", [make, lambda _: wild.make("checkpoint reentrant")])
def test_a_loss_with_a_parameter_of_its_own(build, method):
    temperature = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    case = build("linear")
    case.loss_fn = lambda p, t: squared(p * temperature, t)
    with pytest.warns(UserWarning, match=r"trainable parameters of its own.*a parameter \(\)"):
        got = case.pass_to(method)
    assert not any(tensor.requires_grad for tensor in got.values())
    assert temperature.grad is None


class Scaled(nn.Module):
    """A loss with a weight of its own, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
        self.shift = nn.Parameter(torch.ones(1, dtype=torch.float64), requires_grad=False)

    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return squared(self.scale * predictions + self.shift, targets)


class WithLoss(nn.Module):
    """What the warning advises: one module, whose forward returns the loss."""

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, data: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(data), targets)


@pytest.mark.parametrize("way", ["loop", "func", "norms", "clipped"])
def test_the_parameters_of_a_loss_are_named_and_are_in_the_result_of_one_module(way):
    compute = {
        "loop": gradients.loop_gradients,
        "func": gradients.func_gradients,
        "norms": norms.gradient_norms,
        "clipped": functools.partial(norms.clipped_sum, limit=1.0),
    }[way]
    case, loss = make("linear"), Scaled()
    for loss_fn in (loss, loss.forward, lambda p, t: loss(p, t)):
        with pytest.warns(UserWarning, match="of its own.*: scale of Scaled; put"):
            compute(case.model, loss_fn, case.data, case.targets)

    together = WithLoss(case.model, loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = compute(together, lambda value, _: value, (case.data, case.targets))
        compute(case.model, loss.requires_grad_(False), case.data, case.targets)
    if way in ("loop", "func"):
        # d/ds (s p + 1 - t)^2 / 2 = (s p + 1 - t) p, summed over the outputs of a sample.
        p = case.model(case.data).detach()
        slopes = ((2 * p + 1 - case.targets) * p).flatten(1).sum(1, keepdim=True)
        torch.testing.assert_close(got["loss.scale"], slopes)


@pytest.mark.parametrize("way", ["loop", "func", "norms", "func Jacobians", "iterative computer"])
@pytest.mark.parametrize("name", ["embedding", "batch norm eval"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("inside", [False, True], ids=["batch from outside", "batch from inside"])
def test_called_where_gradients_are_off(name, mode, inside, way):
    case, compute = make(name), WAYS[way].compute
    expected = compute(case, None)
    with mode():
        if inside:
            case.data, case.targets = case.data.clone(), case.targets.clone()
        got = compute(case, None)
    assert_equal(got, expected, TOLERANCE)
    # An inference tensor could not be used with autograd by the caller.
    assert not any(tensor.is_inference() for tensor in got.values())


def state() -> dict[str, object]:
    return {
        "torch's stream": torch.get_rng_state().tolist(),
        "Python's stream": random.getstate(),
        "NumPy's stream": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "filters of warnings": list(warnings.filters),
    }


@every_method
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_global_state_is_left_as_it_was(mode, method):
    case = make("mlp")
    with mode(), warnings.catch_warnings(action="error"):
        before = state()
        case.pass_to(method)
        assert state() == before


SHAPES: list[torch.Size] = []  # of this file, for somebody who looks into a network


@pytest.mark.parametrize("way", ["loop", "func", "func, out", "norms"])
def test_the_own_model_runs_and_what_it_keeps_elsewhere_stays(way):
    case, in_a_closure = make("linear"), []

    def run(self: Apply, inputs: Tensor) -> Tensor:
        SHAPES.append(inputs.shape)
        self.noted.append(inputs.shape)
        return self.fc(inputs)

    def hook(layer: nn.Module, inputs: object, output: Tensor) -> None:
        in_a_closure.append((layer, output.shape))

    layer = case.model
    layer.register_forward_hook(hook)
    case.model = Apply(run, fc=layer, noted=[])
    SHAPES.clear()
    WAYS[way].compute(case, None)
    assert len(SHAPES) > 0
    assert [(1, 3)] * len(SHAPES) == SHAPES
    assert in_a_closure == [(layer, (1, 2))] * len(SHAPES)
    assert case.model.noted == [], "what the model itself keeps is as it was"


@pytest.mark.parametrize("randomness", ["different", "same"])
@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.LSTM(4, 4)], ids=["linear", "lstm"])
def test_all_functions_draw_what_func_gradients_draws(randomness, layer):
    last = layer if isinstance(layer, nn.Linear) else Apply(lambda m, x: m.l(x)[0], l=layer)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), last, nn.Linear(4, 2))
    data, targets = torch.randn(5, 3).double(), torch.randn(5, 2).double()
    case = Case(model.double(), data, targets, squared)

    def seeded(function, *more: object, **options: object):
        torch.manual_seed(1)
        return case.pass_to(function, *more, chunk_size=2, randomness=randomness, **options)

    truth = Truth(lambda: case)
    truth.gradients = rows = seeded(gradients.func_gradients)
    assert_equal(seeded(gradients.func_gradients, out=empty_out(case)), rows, TOLERANCE)
    assert_equal({"": seeded(norms.gradient_norms)}, {"": truth.norms}, TOLERANCE)
    assert_equal(seeded(norms.clipped_sum, truth.limit), truth.clipped_sum, TOLERANCE)


@every_method
@pytest.mark.parametrize("mask_check", [True, False])
def test_a_frozen_encoder_leaves_out_what_is_padded(mask_check, method):
    """By hand it takes a fast path, which puts zeros where the others have numbers."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    frozen = nn.TransformerEncoder(layer, 1, mask_check=mask_check).eval()
    frozen.requires_grad_(False)
    padded = torch.tensor([[False, False, True]])

    def run(self: Apply, x: Tensor) -> Tensor:
        encoded = self.frozen(x, src_key_padding_mask=padded.expand(len(x), -1))
        return self.fc(encoded.sum(1))

    model = Apply(run, frozen=frozen, fc=nn.Linear(4, 2)).double()
    case = Case(model, torch.randn(3, 3, 4).double(), torch.randn(3, 2).double(), squared)
    assert_equal(case.pass_to(method), case.pass_to(oracle), TOLERANCE)


lazy = types.ModuleType("lazy")


@every_method
def test_names_in_branches_that_are_not_taken(method):
    """A module that fails when it is asked for a name, and a variable that has no value yet."""

    def fail(name: str) -> None:
        raise ImportError(name)

    def loss_fn(predictions: Tensor, targets: Tensor) -> Tensor:
        if len(predictions) == 0:
            return lazy.train(later)
        return squared(predictions, targets)

    lazy.__getattr__ = fail
    case = make("linear")
    expected = case.pass_to(oracle)
    case.loss_fn = loss_fn
    assert_equal(case.pass_to(method), expected, TOLERANCE)
    later = None


@pytest.mark.parametrize("function", [*METHODS.values(), norms.gradient_norms])
def test_a_cache_around_the_call_is_refused_where_it_matters(function):
    case = make("linear")
    expected = case.pass_to(function)
    with parametrize.cached():
        torch.testing.assert_close(case.pass_to(function), expected)
        weight_norm(case.model)
        with refused("the model is parametrized", "forward"):
            case.pass_to(function)


def test_a_loop_whose_loss_needs_other_parameters_alone_is_warned_of():
    case = make("linear")
    case.model = Apply(lambda m, x: m.fc(x), fc=case.model, other=nn.Linear(3, 2).double())
    with pytest.warns(UserWarning, match="depends on none of the selected parameters"):
        gradients.loop_gradients(*case.args, wrt=["other.weight"])
