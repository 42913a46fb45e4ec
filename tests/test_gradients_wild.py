"""Habits of real models: right by every method, or refused in a sentence, and never damaged."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import jacobians, norms
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from helpers.transforms.fallback import FallbackWarning
from tests import wild
from tests.oracle import METHODS, TOLERANCES, assert_equal
from tests.support.traces import everything
from tests.test_gradient_computers import LossOf

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
every_model = pytest.mark.parametrize("name", wild.MODELS)
# What `functional_call`, which a task calls, refuses.
UNCALLED = (torch.jit.ScriptModule, nn.DataParallel)
TOLERANCE = TOLERANCES[torch.float64]


def by_hand(inputs, mean, var, weight, bias, dims):
    shape = (1, -1, *(1,) * (inputs.dim() - 2))
    mean, var = (
        (inputs.mean(dims, keepdim=True), inputs.var(dims, False, keepdim=True))
        if (mean is None)
        else (mean.view(shape), var.view(shape))
    )
    outputs = (inputs - mean) / (var + 1e-5).sqrt()
    return outputs if weight is None else outputs * weight.view(shape) + bias.view(shape)


@contextmanager
def norms_by_hand() -> Iterator[None]:
    """Normalise by elementary functions: torch's own backward is wrong for a batch of one."""

    def batch_norm(inputs, mean, var, weight=None, bias=None, *rest):
        return by_hand(inputs, mean, var, weight, bias, None)

    def instance_norm(inputs, mean, var, weight=None, bias=None, use_input_stats=True, *rest):
        if use_input_stats:
            mean = var = None
        return by_hand(inputs, mean, var, weight, bias, tuple(range(2, inputs.dim())))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "batch_norm", batch_norm)
        patch.setattr(F, "instance_norm", instance_norm)
        yield


@functools.cache
def expected(name: str) -> dict[str, Tensor]:
    """Build the model anew for each sample; read `.grad` after `.backward()`."""
    rows: dict[str, list[Tensor]] = {}
    for index in range(4):
        case = wild.make(name)
        sample, target = (tensor[index : index + 1] for tensor in case.batch)
        with norms_by_hand(), torch.compiler.set_stance("force_eager"):
            case.loss_fn(case.model(sample), target).backward()
        for key, parameter in case.model.named_parameters():
            if parameter.requires_grad:
                zeros = torch.zeros_like(parameter)
                gradient = zeros if parameter.grad is None else parameter.grad
                rows.setdefault(key, []).append(gradient.detach())
    return {key: torch.stack(gradients) for key, gradients in rows.items()}


# torch's own, of a checkpoint whose first layer needs no gradient, and of nested tensors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*which torch.vmap takes one sample"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


@every_method
@every_model
@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
def test_equals_a_model_that_is_built_anew_for_each_sample(name, method):
    assert_equal(method(*wild.make(name).args), expected(name), TOLERANCE)


# What `vmap` cannot transform, by name: what the warning says of it.
_ITEM = "reads numbers out of tensors, with .item(), float() or if"
_WRITES = "the model writes into a tensor that is no parameter or buffer of its own"
FALLBACKS = {
    "kept in a tensor": _WRITES,
    "frozen weight halved": _WRITES,
    "checkpoint": "the model uses activation checkpointing, or hooks on saved tensors",
    "checkpoint reentrant": "the model uses a torch.autograd.Function without setup_context",
    "closure into an old function": "a torch.autograd.Function without setup_context",
    "closure into a function, later": f"the model {_ITEM}",
    "closure into a checkpoint": "the model calls requires_grad_() in its forward",
    "scripted": "the model is a scripted module",
    "data parallel": "the model is wrapped in DataParallel: take its .module",
    "item": f"the model {_ITEM}",
    "recurrence in place": "the model writes what belongs to one sample into a tensor of all",
    "sparse buffer": "uses _sparse_addmm, which torch.vmap takes one sample after the other",
    "old function": "the model uses a torch.autograd.Function without setup_context",
    "quantisation observer": f"1 {_ITEM}",
    "padding looked for": f"the model {_ITEM}",
    "padding looked for, eval": f"the model {_ITEM}",
    **{
        f"channels last{norm}": "asks for an order in memory, such as channels_last"
        for norm in ("", ", instance norm", ", group norm")
    },
    "key padding mask, eval": "encoder uses nested tensors",
}


@every_model
def test_what_cannot_be_batched_says_so_once_and_nothing_else_is_heard(name):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        METHODS["func"](*wild.make(name).args)
    said = [str(each.message) for each in heard if each.category is FallbackWarning]
    assert len(said) == (name in FALLBACKS)
    for text in said:
        assert FALLBACKS[name] in text
        assert all(each.filename == __file__ for each in heard if each.category is FallbackWarning)


@every_method
def test_a_model_that_fails_is_left_as_it_was(method):
    case = wild.make("weight halved")
    case.model.run, case.model.seen = wild.flipping, []
    before = everything(case.model)
    with pytest.raises(KeyError, match="the model fails"):
        method(*case.args)
    assert everything(case.model) == before


@pytest.mark.parametrize("chunk_size", [None, 1, 3])
@every_model
@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
def test_jacobians_contract_to_gradients_and_harm_nothing(name, chunk_size):
    case = wild.make(name)
    before = everything(case.model)
    by_loop = jacobians.loop_jacobians(case.model, case.data)
    by_func = jacobians.func_jacobians(case.model, case.data, chunk_size=chunk_size)
    assert everything(case.model) == before
    assert_equal({"": by_func}, {"": by_loop}, TOLERANCE)
    rows = []
    for sample, target in zip(case.data.split(1), case.targets.split(1), strict=True):
        with norms_by_hand(), torch.compiler.set_stance("force_eager"), torch.no_grad():
            rows.append(wild.make(name).model(sample) - target)
    flat = torch.einsum("byp,by->bp", by_loop, torch.cat(rows))
    assert_equal(jacobians.unflatten_jacobians(flat, case.model), expected(name), TOLERANCE)


@pytest.mark.parametrize("kind", [FunctionalGradientComputer, IterativeGradientComputer])
@every_model
@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
def test_gradient_computers_too(name, kind):
    case = wild.make(name)
    count = sum(tensor[0].numel() for tensor in expected(name).values())
    before = everything(case.model)
    computer = kind(case.model, LossOf(case.loss_fn), count, torch.float64, "cpu")
    if isinstance(case.model, UNCALLED):
        with pytest.raises(ValueError, match="which functional_call cannot give other weights"):
            computer.compute_per_sample_grad(case.batch)
    else:
        assert_equal(computer.compute_per_sample_grad(case.batch), expected(name), TOLERANCE)
        computer.compute_loss_grad(case.batch)
    assert everything(case.model) == before


@pytest.mark.parametrize("chunk_size", [1, 3, 64])
@every_model
@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
def test_norms_and_clipped_sums_too(name, chunk_size):
    case = wild.make(name)
    squares = sum(tensor.flatten(1).square().sum(1) for tensor in expected(name).values())
    before = everything(case.model)
    got = norms.gradient_norms(*case.args, chunk_size=chunk_size)
    torch.testing.assert_close(got, squares.sqrt(), rtol=1e-10, atol=1e-12)
    limit = squares.sqrt().median().item()
    total = norms.clipped_sum(*case.args, limit, chunk_size=chunk_size)
    factors = (limit / squares.sqrt()).clamp(max=1)
    sums = {key: torch.einsum("b,b...->...", factors, rows) for key, rows in expected(name).items()}
    assert_equal(total, sums, TOLERANCE)
    assert everything(case.model) == before
