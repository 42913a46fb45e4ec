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
    case, seen = make("frozen"), []  # 0.weight and 2.bias
    expected = oracle(*case.args, wrt=dict.fromkeys(wrt))
    note = lambda m, _: seen.append({n for n, p in m.named_parameters() if p.requires_grad})  # noqa: E731
    case.model.register_forward_pre_hook(note)
    assert_equal(method(*case.args, wrt=wrt), expected, TOLERANCE)
    assert_equal(method(*case.args, wrt=(name for name in wrt)), expected, TOLERANCE)
    assert all(names == set(wrt) for names in seen)


@every_method
@pytest.mark.parametrize("name", ["fc.weight", "first.bias"])
def test_wrt_of_a_part_that_a_backward_within_the_backward_meets(name, method):
    case = wild.make("checkpoint reentrant")
    expected = Truth(functools.partial(wild.make, "checkpoint reentrant")).gradients[name]
    assert_equal(method(*case.args, wrt=[name]), {name: expected}, TOLERANCE)


@pytest.mark.parametrize("trained", [False, True])
def test_what_is_scripted_is_right_whatever_has_run_before(trained):
    """What the compiler optimizes for one kind of run is wrong in another."""
    product = torch.jit.CompilationUnit("def f(x, w, b):\n    return x @ w.t() + b\n").f
    model = Apply(lambda m, x: product(x, m.fc.weight, m.fc.bias).tanh(), fc=make("linear").model)
    plain = Apply(lambda m, x: m.fc(x).tanh(), fc=model.fc)
    batch = make("linear").batch
    for _ in range(3 * trained):
        squared(model(batch[0][:1]), batch[1][:1]).backward()
    for way in ("func", "func, out", "func Jacobians", LOOP) * 3:
        got, expected = (
            WAYS[way].compute(Case(each, *batch, squared), None) for each in (model, plain)
        )
        assert_equal(got, expected, TOLERANCE)


@every_method
def test_a_stored_iterator_begins_anew_for_each_sample(method):
    case, steps = make("linear"), (step for step in (2, 3))
    model = Apply(lambda m, x: m.fc(x) * next(m.steps), fc=case.model, steps=steps)
    expected = oracle(Apply(lambda m, x: m.fc(x) * 2, fc=case.model), *case.args[1:])
    assert_equal(method(model, *case.args[1:]), expected, TOLERANCE)
    assert next(model.steps) == 2


class Centered(nn.Module):
    center = torch.zeros(2).double()

    def forward(self, predictions: Tensor, targets: Tensor) -> Tensor:
        self.center = 0.5 * self.center + 0.5 * predictions.detach().mean(0)
        return squared((predictions - self.center).tanh(), targets)


@pytest.mark.parametrize("way", [name for name in WAYS if "computer" not in name])
def test_a_loss_with_state_begins_anew_for_each_sample(way):
    def case(size: int = 3) -> Case:
        return dataclasses.replace(make("linear", size), loss_fn=lambda p, t: Centered()(p, t))

    way, truth, loss = WAYS[way], Truth(case), Centered()
    losses = loss, lambda p, t: loss(p, t), loss.forward, lambda p, t, one=loss: one(p, t)
    for size, loss_fn in zip((3, 2, 3, 3), losses, strict=True):
        got = way.compute(dataclasses.replace(case(size), loss_fn=loss_fn), truth)
        assert vars(loss).keys() == vars(Centered()).keys()
        if size == 3:
            assert_equal(got, way.expected(truth), TOLERANCE)


@every_method
def test_a_forward_pass_that_freezes_a_layer(method):
    head, case = nn.Linear(2, 2).double(), make("linear")
    model = Apply(lambda m, x: m.head(m.fc.requires_grad_(False)(x)), fc=case.model, head=head)
    grads = method(model, *case.args[1:])
    assert [bool(grad.any()) for grad in grads.values()] == [False, False, True, True]


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
        expected = oracle(*case.args)
    assert_equal(got, expected, 0.02)


@pytest.mark.parametrize("way", ["loop", "func", "func, out", "norms", "norms, chunks"])
def test_a_loss_without_a_graph_is_warned_of_unless_a_sample_has_one(way):
    case = make("linear")
    first = case.targets[0].clone()
    case.loss_fn = lambda p, t: squared(p, t) if (t != first).any() else p.new_zeros(())
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
        step = lambda i, x: (i + 1, self.fc(x).cos())  # noqa: E731
        return while_loop(lambda i, x: i < 2, step, (torch.tensor(0), inputs))[1]

    # Dynamo wraps the refusal, torch 2.11 in a message that no longer quotes it.
    with pytest.raises(Exception, match=r"wrong gradients|Refusal") as raised:
        method(Apply(run, fc=nn.Linear(3, 3)), squared, torch.ones(4, 3), torch.ones(4, 3))
    assert not hasattr(raised.value, "__notes__"), "the model is not to blame"


@every_method
def test_a_parameter_that_is_shared_in_the_data(method):
    case, scale = make("linear"), nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    own = {"fc": case.model, "scale": scale}
    expected = oracle(Apply(lambda m, x: m.fc(x) * m.scale, **own), *case.args[1:])
    model = Apply(lambda m, batch: m.fc(batch[0]) * batch[1], **own)
    got = method(model, case.loss_fn, [case.data, scale], case.targets)
    assert_equal(got, expected, TOLERANCE)


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
    assert method(*case.args) == {}
    assert method(nn.Flatten(), squared, case.data, case.data) == {}


def test_an_empty_batch_leaves_nothing_to_do():
    case = make("mlp", 0)
    out = empty_out(case)
    assert gradients.func_gradients(*case.args, out=out) == out
    assert gradients.func_gradients(*case.args, wrt=[], out={}) == {}
    assert norms.gradient_norms(*case.args).shape == (0,)
    zeros = {name: torch.zeros_like(p) for name, p in case.model.named_parameters()}
    assert_equal(norms.clipped_sum(*case.args, 1.0), zeros, 0)
    assert norms.gradient_norms(*make("mlp").args, wrt=[]).tolist() == [0.0, 0.0, 0.0]
    assert norms.clipped_sum(*make("mlp").args, 1.0, wrt=[]) == {}


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
    loss_fn = lambda z, t: squared(z.reshape(1, -1, 3).sum(1), t)  # noqa: E731
    model = kind(6, 3, sparse=True).double()
    dense = oracle(kind(6, 3, _weight=model.weight.detach()), loss_fn, words, targets)
    got = method(model, loss_fn, words, targets)
    assert_equal(got, dense, TOLERANCE)
    assert got["weight"].layout is torch.strided


@every_method
def test_data_in_any_memory_order_and_with_a_graph(method):
    case = make("grouped")
    expected = oracle(*case.args)
    case.data = case.data.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1).requires_grad_()
    case.targets = case.targets.T.contiguous().T.requires_grad_()
    got = method(*case.args)
    assert_equal(got, expected, TOLERANCE)
    assert not any(tensor.requires_grad for tensor in got.values())
    assert [tensor.grad for tensor in case.batch] == [None, None]


@pytest.mark.parametrize("name", ["scalars", "cnn", "tied weight", "embedding"])
def test_results_are_written_into_any_memory(name):
    """Into that of an earlier call, and into some whose dimensions lie in another order.

    `wrt` chooses and orders what is written; `out` has the order of the model.
    """
    case = make(name)
    earlier = gradients.func_gradients(*case.args)
    turned = {
        n: torch.empty(*p.shape[::-1], 3, dtype=p.dtype).permute(*range(p.dim(), -1, -1))
        for n, p in case.model.named_parameters()
    }
    for memory, wrt in ((earlier, [*earlier]), (turned, [*turned][:0:-1])):
        out = {n: tensor.fill_(torch.nan) for n, tensor in memory.items() if n in wrt}
        got = gradients.func_gradients(*case.args, wrt=wrt, out=out)
        assert_equal(got, oracle(*case.args, wrt=wrt), TOLERANCE)


@every_method
@pytest.mark.parametrize("build", [make, lambda _: wild.make("checkpoint reentrant")])
def test_a_loss_with_a_parameter_of_its_own(build, method):
    case, temperature = build("linear"), nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    got = method(case.model, lambda p, t: squared(p * temperature, t), *case.batch)
    assert not any(tensor.requires_grad for tensor in got.values())
    assert temperature.grad is None


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


def state() -> tuple[object, ...]:
    of_numpy = np.random.get_state()[1].tolist()  # noqa: NPY002
    flags = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    return torch.get_rng_state().tolist(), random.getstate(), of_numpy, *flags, [*warnings.filters]


@every_method
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_global_state_is_left_as_it_was(mode, method):
    case = make("mlp")
    with mode(), warnings.catch_warnings(action="error"):
        before = state()
        method(*case.args)
        assert state() == before


SHAPES: list[torch.Size] = []  # of this file, for somebody who looks into a network


@pytest.mark.parametrize("way", ["loop", "func", "func, out", "norms"])
def test_the_own_model_runs_and_what_it_keeps_elsewhere_stays(way):
    case, closed = make("linear"), []

    def run(self: Apply, inputs: Tensor) -> Tensor:
        SHAPES.append(inputs.shape)
        self.noted.append(inputs.shape)
        return self.fc(inputs)

    case.model = model = Apply(run, fc=case.model, noted=[])
    model.fc.register_forward_hook(lambda fc, _, output: closed.append((fc, output.shape)))
    SHAPES.clear()
    WAYS[way].compute(case, None)
    assert SHAPES == [(1, 3)] * len(SHAPES) != []
    assert closed == [(model.fc, (1, 2))] * len(SHAPES)
    assert model.noted == []


@pytest.mark.parametrize("randomness", ["different", "same"])
@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.LSTM(4, 4)], ids=["linear", "lstm"])
def test_all_functions_draw_what_func_gradients_draws(randomness, layer):
    last = layer if isinstance(layer, nn.Linear) else Apply(lambda m, x: m.l(x)[0], l=layer)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), last, nn.Linear(4, 2))
    case = Case(model.double(), torch.randn(5, 3).double(), torch.randn(5, 2).double(), squared)
    options = {"chunk_size": 2, "randomness": randomness}

    def seeded(function, *more: object, **others: object):
        torch.manual_seed(1)
        return function(*case.args, *more, **options, **others)

    truth = Truth(lambda: case)
    truth.gradients = rows = seeded(gradients.func_gradients)
    assert_equal(seeded(gradients.func_gradients, out=empty_out(case)), rows, TOLERANCE)
    assert_equal({"": seeded(norms.gradient_norms)}, {"": truth.norms}, TOLERANCE)
    assert_equal(seeded(norms.clipped_sum, truth.limit), truth.clipped_sum, TOLERANCE)


@every_method
@pytest.mark.parametrize("mask_check", [True, False])
def test_a_frozen_encoder_leaves_out_what_is_padded(mask_check, method):
    """By hand it takes a fast path, which puts zeros where the others have numbers."""
    layer, padded = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), torch.arange(3) > 1
    frozen = nn.TransformerEncoder(layer, 1, mask_check=mask_check).eval().requires_grad_(False)

    def run(self: Apply, x: Tensor) -> Tensor:
        return self.fc(self.frozen(x, src_key_padding_mask=padded.expand(len(x), -1)).sum(1))

    model = Apply(run, frozen=frozen, fc=nn.Linear(4, 2)).double()
    args = model, squared, torch.randn(3, 3, 4).double(), torch.randn(3, 2).double()
    assert_equal(method(*args), oracle(*args), TOLERANCE)


lazy = types.ModuleType("lazy")


@every_method
def test_names_in_branches_that_are_not_taken(method):
    def fail(name: str) -> None:
        raise ImportError(name)

    def loss(p: Tensor, t: Tensor) -> Tensor:
        return squared(p, t) if len(p) else lazy.train(later)

    case, lazy.__getattr__ = make("linear"), fail
    assert_equal(method(case.model, loss, *case.batch), oracle(*case.args), TOLERANCE)
    later = None


@pytest.mark.parametrize("function", [*METHODS.values(), norms.gradient_norms])
def test_a_cache_around_the_call_is_refused_where_it_matters(function):
    case = make("linear")
    expected = function(*case.args)
    with parametrize.cached():
        torch.testing.assert_close(function(*case.args), expected)
        with refused("the model is parametrized", "forward"):
            function(weight_norm(case.model), *case.args[1:])
