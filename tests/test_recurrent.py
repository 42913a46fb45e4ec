"""Recurrent layers, whose recurrence has a rule of its own, against the oracle."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, rnn

from helpers import gradients, jacobians, norms
from helpers.layers.watch import Watch
from helpers.transforms import cells, recurrent
from helpers.transforms.fallback import FallbackWarning
from tests.support.oracle import assert_equal, oracle
from tests.support.zoo import Apply, Case, squared
from tests.test_gradients_properties import case_of

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def layer(kind: type[nn.RNNBase] = nn.LSTM, **options: object) -> nn.RNNBase:
    return kind(4, 3, **{"batch_first": True, **options})


def every_end(self: Apply, inputs: Tensor) -> Tensor:
    """Use all that a layer returns."""
    output, end = self.layer(inputs)
    ends = end if isinstance(end, tuple) else (end,)
    parts = (output, *(each.transpose(0, 1) for each in ends))
    return torch.cat([part.flatten(1) for part in parts], 1).sin()


def learned_start(self: Apply, inputs: Tensor) -> Tensor:
    start = tuple(each.expand(-1, len(inputs), -1).contiguous() for each in (self.h, self.c))
    return self.layer(inputs, start)[0]


def reused(self: Apply, inputs: Tensor) -> Tensor:
    return self.layer(self.back(self.layer(inputs)[0]))[0]


def packed(self: Apply, inputs: Tensor) -> Tensor:
    sequence = rnn.pack_padded_sequence(inputs, [3] * len(inputs), batch_first=True)
    return rnn.pad_packed_sequence(self.layer(sequence)[0], batch_first=True)[0]


def without_weights_in_order(model: nn.RNNBase) -> nn.RNNBase:
    return parametrizations.weight_norm(model, "weight_hh_l0")


def tied() -> nn.Module:
    model = layer(bidirectional=True)
    model.weight_hh_l0_reverse = model.weight_hh_l0
    return Apply(every_end, layer=model)


def frozen() -> nn.Module:
    model = layer(num_layers=2)
    model.weight_hh_l0.requires_grad_(False)
    model.bias_ih_l1.requires_grad_(False)
    return Apply(every_end, layer=model)


# Take (B, 5, 4).
MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"{name} {what}": lambda kind=kind, options=options: Apply(
            every_end, layer=layer(kind, **options)
        )
        for name, kind in KINDS.items()
        for what, options in {
            "one way": {},
            "both ways, deep": {"bidirectional": True, "num_layers": 3},
            "no bias": {"bias": False, "num_layers": 2},
        }.items()
    },
    "relu": lambda: Apply(every_end, layer=layer(nn.RNN, nonlinearity="relu", num_layers=2)),
    "projected": lambda: Apply(
        every_end, layer=layer(proj_size=2, num_layers=2, bidirectional=True)
    ),
    "projected, no bias": lambda: Apply(every_end, layer=layer(proj_size=2, bias=False)),
    "steps in front": lambda: Apply(
        lambda m, x: m.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=nn.LSTM(4, 3)
    ),
    "without a dimension for N": lambda: Apply(
        lambda m, x: m.layer(x[0])[0][None], layer=layer(nn.GRU, bidirectional=True)
    ),
    "several sequences a sample": lambda: Apply(
        lambda m, x: m.layer(torch.stack([x[0], x[0].flip(0), x[0] * 2]))[0].flatten()[None],
        layer=layer(num_layers=2),
    ),
    "learned start": lambda: Apply(
        learned_start,
        layer=layer(),
        h=nn.Parameter(torch.randn(1, 1, 3)),
        c=nn.Parameter(torch.randn(1, 1, 3)),
    ),
    "the same layer twice": lambda: Apply(reused, layer=layer(), back=nn.Linear(3, 4)),
    "tied weights": tied,
    "frozen weights": frozen,
    "constant input": lambda: Apply(
        lambda m, x: m.layer(torch.ones(1, 2, 4, dtype=x.dtype))[0], layer=layer()
    ),
}
# Weights that are computed: each sample has its own where the watch runs.
COMPUTED: dict[str, Callable[[], nn.Module]] = {
    name: lambda kind=kind: Apply(every_end, layer=without_weights_in_order(layer(kind)))
    for name, kind in KINDS.items()
}


def make(build: Callable[[], nn.Module]) -> Case:
    torch.manual_seed(0)
    return case_of(build(), (5, 4), 3, torch.float64)


def check(case: Case, grads: dict[str, Tensor], chunk_size: int | None) -> None:
    """Compare all ways with the oracle."""
    options = {"chunk_size": chunk_size}
    assert_equal(gradients.func_gradients(*case.args, **options), grads, 1e-12)
    out = {name: torch.full_like(tensor, torch.nan) for name, tensor in grads.items()}
    assert_equal(gradients.func_gradients(*case.args, out=out, **options), grads, 1e-12)
    norm = torch.cat([g.flatten(1) for g in grads.values()], 1).norm(dim=1)
    assert_equal({"n": norms.gradient_norms(*case.args, **options)}, {"n": norm}, 1e-12)
    limit = norm.median().item()
    factors = (limit / norm).clamp(max=1)
    total = {n: torch.einsum("b,b...->...", factors, g) for n, g in grads.items()}
    assert_equal(norms.clipped_sum(*case.args, limit, **options), total, 1e-12)


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("name", MODELS)
def test_every_way_is_exact_without_a_slower_one(name, chunk_size):
    case = make(MODELS[name])
    grads = oracle(*case.args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(case, grads, chunk_size)
        assert_equal(gradients.functorch_gradients(*case.args), grads, 1e-12)
        assert_equal(gradients.loop_gradients(*case.args), grads, 1e-12)


@pytest.mark.parametrize("name", COMPUTED)
def test_weights_that_are_computed(name):
    case = make(COMPUTED[name])
    check(case, oracle(*case.args), None)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_described(name):
    case = make(MODELS[name])
    params = {name: p.detach() for name, p in case.model.named_parameters() if p.requires_grad}
    seen = Watch(gradients.sample_loss(case.loss_fn), case.model, params)(case.batch)
    assert set(seen.rest) <= {"h", "c"}
    assert seen.uses.keys() >= {n for n in params if n.startswith("layer.weight")}


@pytest.mark.parametrize("kind", KINDS.values())
def test_in_float32_no_operation_is_run_sample_by_sample(kind):
    torch.manual_seed(0)
    case = case_of(Apply(every_end, layer=layer(kind)), (5, 4), 3, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "There is a performance drop" says it
        got = gradients.func_gradients(*case.args)
    assert_equal(got, oracle(*case.args), 2e-5)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_dropout_between_layers(randomness):
    model = Apply(every_end, layer=layer(num_layers=2, dropout=0.5)).double()
    case = Case(model, torch.randn(3, 5, 4).double(), torch.randn(3, 27).double(), squared)
    with pytest.raises(ValueError, match="draws random numbers"):
        gradients.func_gradients(*case.args)
    with pytest.raises(ValueError, match="draws random numbers"):
        norms.gradient_norms(*case.args)
    torch.manual_seed(1)
    grads = gradients.func_gradients(*case.args, randomness=randomness)
    torch.manual_seed(1)
    got = norms.gradient_norms(*case.args, randomness=randomness)
    norm = torch.cat([g.flatten(1) for g in grads.values()], 1).norm(dim=1)
    torch.testing.assert_close(got, norm, rtol=1e-12, atol=0)
    model.eval()
    assert_equal(gradients.func_gradients(*case.args), oracle(*case.args), 1e-12)


def test_one_draw_for_all_is_the_draw_of_the_layer_itself():
    torch.manual_seed(0)
    model = Apply(every_end, layer=layer(num_layers=2, dropout=0.5)).double()
    case = Case(model, torch.randn(1, 5, 4).double(), torch.randn(1, 27).double(), squared)
    torch.manual_seed(1)
    got = gradients.func_gradients(*case.args, randomness="same")
    torch.manual_seed(1)
    assert_equal(got, oracle(*case.args), 1e-12)


def test_packed_sequences_are_right():
    case = make(lambda: Apply(packed, layer=layer()))
    grads = oracle(*case.args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(case, grads, None)


def test_a_layer_differentiated_twice_goes_through_the_loop():
    def force(self: Apply, inputs: Tensor) -> Tensor:
        return torch.func.grad(lambda x: self.layer(x)[0].sin().sum())(inputs)

    case = make(lambda: Apply(force, layer=layer()))
    with pytest.warns(FallbackWarning):
        got = gradients.func_gradients(*case.args)
    assert_equal(got, oracle(*case.args), 1e-12)


def test_full_jacobians():
    case = make(lambda: Apply(lambda m, x: m.layer(x)[0].flatten(1), layer=layer(num_layers=2)))
    model, data = case.model, case.data
    got, expected = jacobians.func_jacobians(model, data), jacobians.loop_jacobians(model, data)
    assert_equal({"j": got}, {"j": expected}, 1e-12)


def test_cells_do_what_torch_does():
    """Forwards, since an oracle of gradients sees sums of them only."""
    torch.manual_seed(0)
    for build in MODELS.values():
        model, data = build().double(), torch.randn(1, 5, 4).double()
        with torch.no_grad():
            expected = model(data)
            torch.testing.assert_close(recurrent.unrolling(model, model)(data), expected)


def test_a_mistake_is_seen(monkeypatch):
    """A gradient that forgets the next steps, at the end of the way back."""
    case = make(MODELS["gru one way"])
    real = cells.Gru.back

    def forgetful(w_hh: Tensor, *args: object) -> tuple[Tensor | None, ...]:
        return real(torch.zeros_like(w_hh), *args)

    monkeypatch.setattr(cells.Gru, "back", staticmethod(forgetful))
    with pytest.raises(AssertionError):
        check(case, oracle(*case.args), None)
