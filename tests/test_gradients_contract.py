"""What all functions of `helpers.gradients` promise besides the values of the gradients."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from helpers import gradients, jacobians
from tests.support.oracle import METHODS, TOLERANCES, assert_equal, oracle
from tests.support.zoo import Apply, make, squared

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*which torch.vmap takes one sample"
)  # of attention
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
tolerance = TOLERANCES[torch.float64]


@every_method
@pytest.mark.parametrize(
    "wrt",
    [
        ["0.weight", "0.bias", "2.weight", "2.bias"],
        ["2.bias", "0.weight", "2.weight"],
        ["2.weight"],
        ("0.bias", "2.weight"),
        ["0.weight", "0.weight"],
        [],
    ],
    ids=str,
)
def test_wrt_chooses_names_and_order_frozen_ones_too(wrt, method):
    case = make("frozen")  # 0.weight and 2.bias
    flags = [parameter.requires_grad for parameter in case.model.parameters()]
    assert_equal(method(*case.args, wrt=wrt), oracle(*case.args, wrt=dict.fromkeys(wrt)), tolerance)
    assert_equal(method(*case.args, wrt=(name for name in wrt)), method(*case.args, wrt=wrt), 0)
    assert [parameter.requires_grad for parameter in case.model.parameters()] == flags


@every_method
def test_names_follow_the_model_and_leave_out_the_frozen(method):
    assert list(method(*make("frozen").args)) == ["0.bias", "2.weight"]
    assert list(method(*make("unused").args)) == ["z.weight", "z.bias", "a.weight", "a.bias"]
    assert list(method(*make("tied weight").args)) == ["0.weight", "0.bias", "2.bias"]


@every_method
def test_only_what_is_asked_for_is_differentiated(method):
    seen = []

    def forward(self: Apply, inputs: torch.Tensor) -> torch.Tensor:
        seen.append([self.a.weight.requires_grad, self.b.weight.requires_grad])
        return self.b(self.a(inputs))

    model = Apply(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 2))
    method(model, squared, torch.randn(2, 3), torch.randn(2, 2), wrt=["b.weight"])
    assert seen
    assert all(flags == [False, True] for flags in seen)


@every_method
def test_nothing_to_differentiate(method):
    case = make("linear")
    case.model.requires_grad_(False)
    assert method(*case.args) == {}
    assert method(nn.Flatten(), squared, case.data, case.data) == {}


@every_method
def test_zeros_for_what_the_loss_does_not_reach(method):
    unused = method(*make("unused").args)
    assert not unused["z.weight"].any()
    assert unused["a.weight"].any()
    assert not any(tensor.any() for tensor in method(*make("no_grad inside").args).values())
    case = make("linear")
    constant = method(case.model, lambda p, t: torch.tensor(2.0), *case.batch)
    assert constant["weight"].shape == (3, 2, 3)
    assert not constant["weight"].any()


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
def test_data_in_any_memory_order_and_with_a_graph(method):
    case = make("grouped")
    by_oracle = oracle(*case.args)
    case.data = case.data.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1).requires_grad_()
    case.targets = case.targets.T.contiguous().T.requires_grad_()
    assert not case.data.is_contiguous()
    got = method(*case.args)
    assert_equal(got, by_oracle, tolerance)
    assert not any(tensor.requires_grad for tensor in got.values())
    assert case.data.grad is None
    assert case.targets.grad is None


@every_method
def test_a_loss_with_a_parameter_of_its_own(method):
    case, temperature = make("linear"), nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    got = method(case.model, lambda p, t: squared(p * temperature, t), *case.batch)
    assert not any(tensor.requires_grad for tensor in got.values())
    assert temperature.grad is None


@every_method
@pytest.mark.parametrize("name", ["linear", "mlp", "embedding", "batch norm eval", "encoder eval"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("inside", [False, True], ids=["batch from outside", "batch from inside"])
def test_called_where_gradients_are_off(name, mode, inside, method):
    case = make(name)
    by_oracle = oracle(*case.args)
    with mode():
        if inside:
            case.data, case.targets = case.data.clone(), case.targets.clone()
        got = method(*case.args)
    assert_equal(got, by_oracle, tolerance)
    # An inference tensor could not be used with autograd by the caller.
    assert not any(tensor.is_inference() for tensor in got.values())


@every_method
def test_global_state_is_left_as_it_was(method):
    def state() -> tuple[object, ...]:
        return (
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            list(warnings.filters),
        )

    case = make("mlp")
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            before = state()
            method(*case.args)
            assert state() == before


@every_method
def test_nothing_is_warned_of(method):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # functorch's calls warn that they are deprecated
        method(*make("mlp").args)


@every_method
def test_dropout_that_drops_nothing_is_welcome(method):
    case = make("linear")
    by_oracle = oracle(*case.args)
    for layer in (nn.Dropout(0.0), nn.Dropout().eval()):
        model = nn.ModuleList([case.model, layer])
        run = Apply(lambda m, x: m.all[1](m.all[0](x)), all=model)
        got = method(run, squared, *case.batch)
        assert_equal(dict(zip(by_oracle, got.values(), strict=True)), by_oracle, tolerance)


def test_randomness_same_and_different():
    model = nn.Sequential(nn.Linear(3, 64), nn.Dropout(), nn.Linear(64, 1)).double()
    data, targets = torch.ones(4, 3).double(), torch.zeros(4, 1).double()

    def rows(**options: object) -> torch.Tensor:
        return gradients.func_gradients(model, squared, data, targets, **options)["0.weight"]

    same = rows(randomness="same")
    assert (same == same[0]).all()
    assert (same == 0).any()
    different = rows(randomness="different")
    for first, second in ((0, 1), (1, 2), (2, 3)):
        assert not torch.equal(different[first], different[second])
    assert not torch.equal(rows(randomness="same"), same), "drawn once, for good"
    torch.manual_seed(1)
    seeded = rows(randomness="different", chunk_size=2)
    torch.manual_seed(1)
    assert torch.equal(rows(randomness="different", chunk_size=2), seeded)


@pytest.mark.parametrize("loop", ["gradients", "jacobians"])
def test_loop_does_not_see_its_own_writes_into_weights(loop):
    """An embedding with `max_norm` scales rows of its weight in the forward."""
    model = torch.nn.Sequential(
        torch.nn.Embedding(7, 5, max_norm=0.5), torch.nn.Flatten(), torch.nn.Linear(20, 3)
    )
    before = model[0].weight.detach().clone()
    words, targets = torch.randint(7, (4, 4)), torch.randint(3, (4,))
    if loop == "gradients":
        gradients.loop_gradients(model, torch.nn.functional.cross_entropy, words, targets)
    else:
        jacobians.loop_jacobians(model, words)
    assert torch.equal(model[0].weight, before)
    with torch.no_grad():
        model(words)
    assert not torch.equal(model[0].weight, before), "the model writes nothing into its weight"
