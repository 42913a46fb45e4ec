"""Norms and clipped sums of per-sample gradients, against gradients that exist."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import benchmark, gradients, norms
from helpers.layers import convolution, watch
from helpers.layers.use import squared_norms
from helpers.models import SimpleCNN
from tests.support.oracle import TOLERANCES, assert_equal, oracle
from tests.support.zoo import MODELS, Apply, Case, make, squared
from tests.test_gradients_properties import case_of, convolutions, networks

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*which torch.vmap takes one sample"),
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning"),
]
examples = functools.partial(settings, deadline=None, derandomize=True, database=None)


def check(case: Case, **options: object) -> None:
    """Compare both functions with the oracle, at a limit that clips some samples and not others."""
    every = oracle(*case.args, wrt=[name for name, _ in case.model.named_parameters()])
    names = options.get("wrt") or [n for n, p in case.model.named_parameters() if p.requires_grad]
    grads = {name: every[name] for name in names}
    norm = sum(g.reshape(len(g), -1).square().sum(1) for g in grads.values()).sqrt()
    limit = norm.median().item() or 1.0
    factors = (limit / norm).clamp(max=1)
    total = {n: torch.einsum("b,b...->...", factors, g) for n, g in grads.items()}
    # A gradient that vanishes is what rounding leaves of larger numbers.
    scale = max(g.abs().max().item() for g in every.values())
    dtype = next(case.model.parameters()).dtype
    close = functools.partial(
        torch.testing.assert_close, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * scale
    )
    close(norms.gradient_norms(*case.args, **options).double(), norm)
    got = norms.clipped_sum(*case.args, limit, **options)
    assert list(got) == list(total)
    assert all(tensor.dtype == dtype and not tensor.requires_grad for tensor in got.values())
    close({name: tensor.double() for name, tensor in got.items()}, total)


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_zoo(name, chunk_size):
    check(make(name), chunk_size=chunk_size)


# Torch has no rule for a batch of these with weights of their own.
NOT_WATCHED = ["spectral norm", "spectral norm hook"]


@pytest.mark.parametrize("name", [name for name in MODELS if name not in NOT_WATCHED])
def test_one_pass_does(name, monkeypatch):
    monkeypatch.setattr(gradients, "func_gradients", None)
    norms.clipped_sum(*make(name).args, 1.0)


@pytest.mark.parametrize("name", NOT_WATCHED)
def test_what_cannot_be_watched_goes_the_way_of_func_gradients(name, monkeypatch):
    case, calls = make(name), []
    real = gradients.func_gradients
    monkeypatch.setattr(
        gradients, "func_gradients", lambda *a, **o: calls.append(o["wrt"]) or real(*a, **o)
    )
    norms.gradient_norms(*case.args)
    assert calls == [[name for name, _ in case.model.named_parameters()]]


def test_no_memory_is_no_reason_for_a_way_that_takes_more(monkeypatch):
    case = make("mlp")
    monkeypatch.setattr(watch.samples, "map_samples", _raising(torch.OutOfMemoryError("no memory")))
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        norms.gradient_norms(*case.args)


def _raising(fault: Exception):
    def function(*args: object, **options: object) -> None:
        raise fault

    return function


class Square(torch.autograd.Function):
    """A product with a weight that no function of torch takes by name."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor) -> Tensor:
        return inputs * weight.square()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grads):
        inputs, weight = ctx.saved_tensors
        return grads * weight.square(), (2 * grads * inputs * weight).sum(0)


def _functional(self: Apply, inputs: Tensor) -> Tensor:
    return F.linear(self.a(inputs), self.a.weight.T.tanh()) + self.a.weight.norm()


def _force(self: Apply, inputs: Tensor) -> Tensor:
    return torch.func.grad(lambda x: self.b(self.a(x).tanh()).sum())(inputs)


def _constant(self: Apply, inputs: Tensor) -> Tensor:
    return self.b(inputs + self.a.weight.sum() + self.a(torch.ones_like(inputs[:1])))


def pair(forward, **layers) -> nn.Module:
    return Apply(forward, **({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)} | layers))


TRICKY = {
    "functional": lambda: pair(_functional),
    "custom function": lambda: pair(lambda m, x: m.b(Square.apply(m.a(x), m.b.bias))),
    "func.grad inside": lambda: pair(_force),
    "constant input": lambda: pair(_constant),
    "output changed in place": lambda: nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)
    ),
    "weight as input": lambda: pair(lambda m, x: x @ F.linear(m.a.weight, m.b.weight)),
    "rows mixed": lambda: pair(lambda m, x: m.b(m.a(x) - m.a(x).mean(0) + x)),
    "vmap inside": lambda: pair(lambda m, x: torch.vmap(m.a)(x)),
    "several rows": lambda: pair(lambda m, x: m.b(m.a(x.expand(4, 3)).tanh()).sum(0)[None]),
    "half in no_grad": lambda: pair(lambda m, x: m.a(x) + torch.no_grad()(m.a)(2 * x)),
    "detached": lambda: pair(lambda m, x: m.b(m.a(x).detach())),
    "data": lambda: pair(lambda m, x: F.linear(x, m.a.weight.data) + m.b(x)),
}


@pytest.mark.parametrize("name", TRICKY)
@pytest.mark.parametrize("chunk_size", [None, 1])
def test_any_use_of_a_weight(name, chunk_size):
    torch.manual_seed(0)
    model = TRICKY[name]().double()
    data, targets = torch.randn(3, 3).double(), torch.randn(3, 1).double()
    check(Case(model, data, targets, squared), chunk_size=chunk_size)


@examples(max_examples=150)
@given(st.one_of(networks(), convolutions()), st.sampled_from([None, 1, 2]), st.data())
def test_any_shapes_names_and_chunks(case, chunk_size, data):
    names = [name for name, _ in case.model.named_parameters()]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    if len(case.data):  # the empty batch has a test of its own
        check(case, wrt=chosen, chunk_size=chunk_size)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("images", [False, True])
def test_convolutions_by_both_ways(dims, images):
    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    for channels, size in ((2, 6), (24, 4)):  # the gradient itself; the Gram matrices
        torch.manual_seed(0)
        layer = kinds[dims](channels, 2 * channels, 2, 2, 1, 2, 2)
        model = nn.Sequential(layer, nn.Tanh(), nn.Flatten())
        if images:  # without the dimension of images
            model = Apply(lambda m, x: m.layer(x[0])[None].tanh().flatten(1), layer=layer)
        check(case_of(model, (channels, *(size,) * dims), 3, torch.float64))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_place_by_place(dims, dilation, groups, monkeypatch):
    torch.manual_seed(0)
    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    layer = kinds[dims](16, 4, (3, 2, 1)[:dims], 1, (1, 0, 2)[:dims], dilation, groups)
    monkeypatch.setattr(convolution, "_POSITIONS", 0)  # small images too
    case = case_of(
        nn.Sequential(layer, nn.Tanh(), nn.Flatten()), (16, *(9, 8, 7)[:dims]), 3, torch.float64
    )
    with monkeypatch.context() as patch:  # it is this way that is tested
        patch.setattr(convolution.Convolution, "factors", None)
        check(case)
    monkeypatch.setattr(convolution, "_CACHED", 1)  # one sample after the other
    grads = oracle(*case.args)
    out = {name: torch.empty_like(tensor) for name, tensor in grads.items()}
    assert_equal(gradients.func_gradients(*case.args, out=out), grads, 1e-12)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1_000_001])
def test_squares_of_many_numbers_are_added_up_without_loss(size):
    torch.manual_seed(0)
    numbers = torch.randn(2, size)
    exact = numbers.double().square().sum(1)
    torch.testing.assert_close(squared_norms(numbers).double(), exact, rtol=5e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_cancels_is_not_taken_from_gram_matrices(dtype):
    torch.manual_seed(0)
    model = nn.Linear(40, 40, bias=False).to(dtype)
    tokens = torch.randn(3, 1, 40, dtype=dtype)
    data = torch.cat([tokens, -tokens * (1 - 1e-3)], dim=1)
    got = norms.gradient_norms(model, lambda p, t: (p * t).sum(), data, torch.ones_like(data))
    grads = oracle(model, lambda p, t: (p * t).sum(), data, torch.ones_like(data))
    assert_equal({"n": got}, {"n": grads["weight"].flatten(1).norm(dim=1)}, TOLERANCES[dtype])


@pytest.mark.parametrize("randomness", ["different", "same"])
@pytest.mark.parametrize("seen", [True, False])
def test_dropout_draws_what_func_gradients_draws(randomness, seen):
    last = nn.Linear(4, 2) if seen else nn.Sequential(nn.PReLU(), nn.Linear(4, 2))
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), last)
    data, targets = torch.randn(5, 3), torch.randn(5, 2)
    torch.manual_seed(1)
    options = {"chunk_size": 2, "randomness": randomness}
    grads = gradients.func_gradients(model, squared, data, targets, **options)
    norm = torch.cat([g.flatten(1) for g in grads.values()], 1).norm(dim=1)
    torch.manual_seed(1)
    got = norms.gradient_norms(model, squared, data, targets, **options)
    torch.testing.assert_close(got, norm)
    torch.manual_seed(1)
    total = norms.clipped_sum(model, squared, data, targets, 0.5, **options)
    factors = (0.5 / norm).clamp(max=1)
    for name, gradient in grads.items():
        by_hand = torch.einsum("b,b...->...", factors, gradient)
        torch.testing.assert_close(total[name], by_hand)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_a_bad_limit_is_refused(limit):
    with pytest.raises(ValueError, match="limit must be a finite Python number above 0, got"):
        norms.clipped_sum(*make("mlp").args, limit)


def test_sums_in_half_precision_are_those_of_all_samples():
    """The gradient of each sample is 1, and in bfloat16 512 + 2 is 512."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    data = torch.ones(1024, 1, dtype=torch.bfloat16)
    total = norms.clipped_sum(model, lambda z, t: z.sum(), data, data, 2.0, chunk_size=2)
    assert total["weight"].dtype == torch.bfloat16
    assert total["weight"].item() == 1024


def test_what_gradients_refuse_is_refused():
    case = make("mlp")
    dropout = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(784, 10)).double()
    mixing = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10)).double()
    for function in (norms.gradient_norms, functools.partial(norms.clipped_sum, limit=1.0)):
        for model, sentence in ((dropout, "draws random numbers"), (mixing, "is BatchNorm")):
            with pytest.raises(ValueError, match=sentence):
                function(model, case.loss_fn, case.data, case.targets)
        with pytest.raises(ValueError, match="which is no parameter"):
            function(*case.args, wrt=["fc3"])
        with pytest.raises(ValueError, match="chunk_size must be"):
            function(*case.args, chunk_size=0)
        with pytest.raises(ValueError, match="randomness must be"):
            function(*case.args, randomness="sometimes")
        with pytest.raises(ValueError, match="must return a scalar"):
            function(case.model, lambda p, t: p, case.data, case.targets)


def test_nothing_to_do():
    empty = make("cnn", 0)
    assert norms.gradient_norms(*empty.args).shape == (0,)
    total = norms.clipped_sum(*empty.args, 1.0)
    assert {n: t.shape for n, t in total.items()} == {
        n: p.shape for n, p in empty.model.named_parameters()
    }
    assert not any(t.any() for t in total.values())
    assert norms.gradient_norms(*make("mlp").args, wrt=[]).tolist() == [0.0, 0.0, 0.0]
    assert norms.clipped_sum(*make("mlp").args, 1.0, wrt=[]) == {}


@pytest.mark.parametrize("name", ["cnn", "lstm", "shared layer", "buffer rebound", "stash"])
def test_the_model_is_left_as_it_was(name):
    case = make(name)
    for parameter in case.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(case.model.state_dict())
    attributes = [set(vars(module)) for module in case.model.modules()]
    norms.clipped_sum(*case.args, 1.0)
    assert all(torch.equal(t, before[n]) for n, t in case.model.state_dict().items())
    assert all((p.grad == 1).all() and p.grad_fn is None for p in case.model.parameters())
    assert [set(vars(module)) for module in case.model.modules()] == attributes


def test_memory_does_not_grow_with_the_batch():
    model = SimpleCNN()
    for function in (norms.gradient_norms, functools.partial(norms.clipped_sum, limit=1.0)):
        peaks = []
        for size in (16, 64):
            data, targets = torch.randn(size, 1, 28, 28), torch.randint(10, (size,))
            call = functools.partial(function, model, F.cross_entropy, data, targets, chunk_size=16)
            peaks.append(benchmark.memory(call).peak)
        gradients_of_a_chunk = 16 * 4 * sum(p.numel() for p in model.parameters())
        assert peaks[1] < 1.05 * peaks[0] < gradients_of_a_chunk
