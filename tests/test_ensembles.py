"""Networks trained together are what each would be alone; what cannot be stacked is refused."""

import re
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import benchmark, compare, ensembles, optimizers

STEPS = {
    "sgd": (optimizers.sgd_step, torch.optim.SGD, {}),
    "momentum": (optimizers.momentum_step, torch.optim.SGD, {"momentum": 0.9}),
    "adam": (optimizers.adam_step, torch.optim.Adam, {}),
}
every_step = pytest.mark.parametrize("name", STEPS)
SEEDS = (3, 0, 7)


def build(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).double()


def build_with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


def half_frozen() -> nn.Module:
    model = build()
    model[2].bias.requires_grad_(False)
    return model


def samples(size: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    return data, torch.randint(3, (size,), generator=generator)


def alone(seed, order, name, lr, weight_decay):
    """Train one network as everybody does."""
    data, targets = samples()
    torch.manual_seed(seed)
    model = build()
    _, optimizer, options = STEPS[name]
    optimizer = optimizer(model.parameters(), lr=lr, weight_decay=weight_decay, **options)
    for indices in order:
        optimizer.zero_grad()
        F.cross_entropy(model(data[indices]), targets[indices]).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@every_step
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_each_is_what_it_would_be_alone(name, chunk_size):
    order = ensembles.draw_orders(SEEDS, 24, 6, 9, bootstrap=True)
    rates, decays = [0.3, 0.1, 0.02], [0.0, 0.1, 0.01]
    trained = ensembles.train(
        ensembles.initialise(build, SEEDS),
        F.cross_entropy,
        *samples(),
        order,
        STEPS[name][0],
        lr=torch.tensor(rates, dtype=torch.float64),
        weight_decay=torch.tensor(decays, dtype=torch.float64),
        chunk_size=chunk_size,
    )
    for index, seed in enumerate(SEEDS):
        expected = alone(seed, order[index], name, rates[index], decays[index])
        compare.check(trained.member(index), expected, tolerance=1e-10)


@every_step
def test_a_step_is_that_of_torch(name):
    step, optimizer, options = STEPS[name]
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (3, 2), "scalar": ()}
    start = {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    kept = {n: tensor.clone() for n, tensor in start.items()}
    leaves = {n: tensor.clone().requires_grad_() for n, tensor in start.items()}
    optimizer = optimizer(leaves.values(), lr=0.1, weight_decay=0.3, **options)
    params, state = start, {}
    for _ in range(7):
        grads = {n: torch.randn(s, generator=generator).double() for n, s in shapes.items()}
        for n, leaf in leaves.items():
            leaf.grad = grads[n].clone()
        optimizer.step()
        params, state = step(params, grads, state, lr=0.1, weight_decay=0.3)
    for n in shapes:
        torch.testing.assert_close(params[n], leaves[n].detach(), rtol=1e-12, atol=1e-12)
        assert torch.equal(start[n], kept[n])  # nothing was written in place


def test_predictions_and_chunks():
    ensemble = ensembles.initialise(build, SEEDS)
    data, _ = samples()
    got = ensembles.predict(ensemble, data)
    assert got.shape == (3, 24, 3)
    assert not got.requires_grad
    torch.testing.assert_close(ensembles.predict(ensemble, data, chunk_size=2), got)
    for index in range(3):
        model = build()
        model.load_state_dict(ensemble.member(index))
        torch.testing.assert_close(got[index], model(data).detach())


class Rebinding(nn.Module):
    """A layer that binds a buffer anew, counts its calls, and has a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3).double(), 0
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("shift", torch.rand(3, dtype=torch.float64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        outputs = self.layer(x) * self.calls + self.shift
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return outputs - self.mean


class Cached(nn.Module):
    """A layer that keeps what it has computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.cache = nn.Linear(4, 3).double(), {}
        self.register_buffer("angles", torch.arange(4.0).double(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "cos" not in self.cache:
            self.cache["cos"] = self.angles.cos()
        return self.layer(x * self.cache["cos"])


class Cells(nn.Module):
    """Two cells, which are recurrent layers of one step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(4, 3).double(), nn.GRUCell(4, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0] + self.gru(x)


class Recurrent(nn.Module):
    """A recurrent network, which `vmap` has no rule for."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(2, 3, batch_first=True), nn.Linear(3, 3)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x.unflatten(1, (2, 2)))[0][:, -1])


MODELS = {
    "rebinding": Rebinding,
    "cached": Cached,
    "running statistics": build_with_norm,
    "frozen": half_frozen,
    **{kind.__name__: lambda kind=kind: Recurrent(kind) for kind in (nn.LSTM, nn.GRU, nn.RNN)},
    "cells": Cells,
    "compiled": lambda: torch.compile(build(), backend="eager"),
}


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("name", MODELS)
def test_what_networks_keep_and_write_is_what_it_would_be_alone(name, chunk_size):
    data, targets = samples()
    order = ensembles.draw_orders(SEEDS, 24, 6, 4)
    start = ensembles.initialise(MODELS[name], SEEDS)
    options = {"lr": 0.1, "chunk_size": chunk_size}
    for _ in range(2):  # the first leaves nothing on the networks that are given
        trained = ensembles.train(
            start, F.cross_entropy, data, targets, order, optimizers.sgd_step, **options
        )
    outputs = ensembles.predict(trained, data, chunk_size=chunk_size)
    for index, seed in enumerate(SEEDS):
        with torch.compiler.set_stance("force_eager"):
            torch.manual_seed(seed)
            model = MODELS[name]()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for indices in order[index]:
                optimizer.zero_grad()
                F.cross_entropy(model(data[indices]), targets[indices]).backward()
                optimizer.step()
            expected = {key: tensor.clone() for key, tensor in model.state_dict().items()}
            compare.check(trained.member(index), expected, tolerance=1e-10)
            model.calls = 0  # what is no tensor starts anew
            torch.testing.assert_close(outputs[index], model(data).detach())


def test_tied_weights_stay_tied():
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
        model[2].weight = model[0].weight
        return model

    ensemble, model = ensembles.initialise(tied, SEEDS), tied()
    assert list(ensemble.params) == ["0.weight", "0.bias", "2.bias"]
    model.load_state_dict(ensemble.member(1))  # which takes each name
    data, _ = samples()
    torch.testing.assert_close(ensembles.predict(ensemble, data)[1], model(data).detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adam_counts_its_steps_in_half_precision(dtype):
    generator = torch.Generator().manual_seed(0)
    start = {"weight": torch.zeros(4, dtype=dtype), "scalar": torch.zeros((), dtype=dtype)}
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=1e-3, eps=1e-4)
    params, state = start, {}
    for _ in range(300):
        grads = {n: torch.rand(t.shape, generator=generator).to(dtype) for n, t in start.items()}
        for name, leaf in leaves.items():
            leaf.grad = grads[name].clone()
        optimizer.step()
        params, state = optimizers.adam_step(params, grads, state, lr=1e-3, eps=1e-4)
    for name, leaf in leaves.items():
        assert params[name].dtype == dtype
        torch.testing.assert_close(params[name], leaf.detach(), rtol=0.02, atol=0)


def test_nothing_trained_is_in_a_graph():
    data, targets = samples()
    order = ensembles.draw_orders(SEEDS, 24, 6, 2)
    rate = torch.tensor(0.1, requires_grad=True)
    trained = ensembles.train(
        ensembles.initialise(build, SEEDS),
        F.cross_entropy,
        data.requires_grad_(),
        targets,
        order,
        optimizers.momentum_step,
        lr=rate,
    )
    assert not any(tensor.requires_grad for tensor in trained.params.values())


def test_chunks_bound_the_memory():
    count = 16
    ensemble = ensembles.initialise(lambda: build(width=64), range(count))
    order = ensembles.draw_orders(range(count), 24, 24, 1)
    data = samples()

    def peak(chunk_size: int) -> int:
        def run() -> ensembles.Ensemble:
            return ensembles.train(
                ensemble,
                F.cross_entropy,
                *data,
                order,
                optimizers.adam_step,
                lr=0.1,
                chunk_size=chunk_size,
            )

        return benchmark.memory(run).peak

    assert peak(2) < peak(count) / 3


def test_initialising_leaves_the_random_streams():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    ensembles.initialise(build, SEEDS)
    assert torch.equal(torch.rand(2), expected)


def test_orders():
    order = ensembles.draw_orders((4, 9), 10, 3, 7)
    assert order.shape == (2, 7, 3)
    for row in order:
        for epoch in range(2):  # 3 batches of 3 in each, one sample left out
            assert len(row[3 * epoch : 3 * epoch + 3].unique()) == 9
    assert not torch.equal(order[0], order[1])
    assert torch.equal(order[1], ensembles.draw_orders([9], 10, 3, 7)[0])
    drawn = ensembles.draw_orders([0], 1000, 1000, 1, bootstrap=True)
    # 1 - 1/e = 632 of 1000 are expected, with a standard deviation below 10
    assert 580 < len(drawn.unique()) < 690
    assert ensembles.draw_orders([0], 10, 5, 0).shape == (1, 0, 5)


def test_dropout_needs_a_word():
    def build_with_dropout() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)).double()

    ensemble = ensembles.initialise(build_with_dropout, (0, 0))
    order = ensembles.draw_orders((0, 0), 24, 6, 2)

    def train(**options: str) -> ensembles.Ensemble:
        return ensembles.train(
            ensemble, F.cross_entropy, *samples(), order, optimizers.sgd_step, lr=0.1, **options
        )

    for refused in (train, lambda: ensembles.predict(ensemble, samples()[0])):
        with pytest.raises(ValueError, match=r"draws random .* whether networks share"):
            refused()
    for randomness, same in (("same", True), ("different", False)):
        weights = train(randomness=randomness).params["0.weight"]
        assert torch.equal(weights[0], weights[1]) == same


def build_relu() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def train_with(ensemble: ensembles.Ensemble) -> ensembles.Ensemble:
    order = ensembles.draw_orders(SEEDS, 24, 4, 1)
    step = optimizers.sgd_step
    return ensembles.train(ensemble, F.cross_entropy, *samples(), order, step, lr=0.1)


class Held(nn.Module):
    """A layer with something on it that is neither a parameter nor a buffer."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.layer, self.held = nn.Linear(4, 3), held


def two_layers(tied: bool) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if tied:
        model[1].weight = model[0].weight
    return model


def encoder(**options: object) -> nn.Module:
    return nn.TransformerEncoderLayer(4, **{"nhead": 1, "dim_feedforward": 8, **options})


SHARED = build()
DIFFERING = {
    "width": (build(), build(6), "0 is Linear(in_features=4, out_features=5"),
    "class": (build(), build_relu(), "1 is Tanh() in model 0 and ReLU() in model 1"),
    "a layer more": (
        build(),
        nn.Sequential(*build(), nn.Tanh()),
        "3 is missing in model 0 and Tanh() in model 1",
    ),
    "a layer less": (
        nn.Sequential(*build(), nn.Tanh()),
        build(),
        "3 is Tanh() in model 0 and missing in model 1",
    ),
    "frozen": (build(), half_frozen(), "2.bias is (3,) torch.float64 in model 0 and (3,) torch."),
    "modes": (
        build(),
        build().eval(),
        "the model is in train mode in model 0 and in eval mode in model 1",
    ),
    "dropout": (nn.Dropout(0.1), nn.Dropout(0.2), "the model is Dropout(p=0.1, inplace=False)"),
    "heads": (encoder(), encoder(nhead=2), "self_attn.num_heads is 1 in model 0 and 2 in model 1"),
    "activation": (encoder(), encoder(activation="gelu"), "activation_relu_or_gelu is 1"),
    "order": (encoder(), encoder(norm_first=True), "norm_first is False in model 0 and True in"),
    "number": (Held(1.0), Held(2.0), "held is 1.0 in model 0 and 2.0 in model 1"),
    "numbers": (Held([1, (2,)]), Held([1, (3,)]), "held is [1, (2,)] in model 0 and [1, (3,)]"),
    "tensor": (Held(torch.ones(1)), Held(torch.zeros(1)), "held is a tensor (1,), its numbers"),
    "function": (Held(torch.tanh), Held(torch.relu), "tanh in model 0"),
    "deeper": (nn.Sequential(Held(1)), nn.Sequential(Held(2)), "0.held is 1 in model 0"),
    "tied in the first": (two_layers(True), two_layers(False), "tied to 0.weight in model 0"),
    "tied in the second": (two_layers(False), two_layers(True), "tied to 0.weight in model 1"),
    "shared": (SHARED, SHARED, "0.weight of model 1 is 0.weight of model 0"),
}


@pytest.mark.parametrize("case", DIFFERING)
def test_networks_that_one_structure_cannot_stand_for_are_refused(case):
    """Else all networks would silently compute with what the first one holds."""
    *models, sentence = DIFFERING[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        ensembles.stack(models)


def test_what_is_the_same_is_stacked():
    def make() -> list[nn.Module]:
        return [
            Held({"f": lambda x: x + 1}),
            Held(torch.ones(2)),
            nn.MultiheadAttention(4, 2),
            encoder(activation=F.silu),
            torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        ]

    for pair in zip(make(), make(), strict=True):
        assert len(ensembles.stack(pair)) == 2


def test_what_a_forward_has_computed_is_no_hindrance():
    class Keeping(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = super().forward(x)  # a tensor in a graph, which has no deep copy
            return self.last

    models = [Keeping(4, 3).double() for _ in SEEDS]
    data, _ = samples()
    expected = torch.stack([model(data).detach() for model in models])
    torch.testing.assert_close(ensembles.predict(ensembles.stack(models), data), expected)


class Wrapped(nn.Module):
    """A network whose forward was wrapped: the wrapper closes over a layer of this very network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer = nn.Linear(4, 3).double()
        layer.forward = lambda x: F.linear(x, layer.weight, layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Listed(nn.Module):
    """A network that reads its parameters from a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4).double())
        self.parts = [self.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.parts[0].T


class Leaving(nn.Module):
    """A network whose part leaves its result with it, by a weak reference."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.last = nn.Linear(4, 3).double(), None
        self.part.whole = weakref.ref(self)
        self.part.register_forward_hook(lambda part, _, out: setattr(part.whole(), "last", out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part(x)
        return self.last


class Viewing(Listed):
    """A network that keeps a view of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = self.weight[:2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.parts.T


def holding(held: object) -> nn.Module:
    """Make a network that holds an object."""
    model = build()[0]
    model.held = held
    return model


@pytest.mark.parametrize("network", [Wrapped, Listed, Leaving])
def test_a_forward_that_holds_the_first_networks_tensors_gets_those_of_each(network):
    data, _ = samples()
    torch.manual_seed(0)
    models = [network() for _ in SEEDS]
    expected = torch.stack([model(data).detach() for model in models])
    torch.testing.assert_close(ensembles.predict(ensembles.stack(models), data), expected)


def test_hooks_get_the_module_that_runs():
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)).double()
        model[0].register_forward_hook(
            lambda module, inputs, outputs: outputs * module.weight[0, 0]
        )
        model[1].other = model[0].forward  # a bound method, which is copied with its module
        return model

    data, _ = samples()
    outputs = ensembles.predict(ensembles.initialise(make, SEEDS), data)
    for index, seed in enumerate(SEEDS):
        torch.manual_seed(seed)
        torch.testing.assert_close(outputs[index], make()(data).detach())


def norm_of_its_own() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(build()[0])


REFUSED = {
    "no seed": (lambda: ensembles.initialise(build, []), "seeds must hold a seed"),
    "no model": (lambda: ensembles.stack([]), "models must hold a model"),
    "a view of a weight": (
        lambda: ensembles.predict(ensembles.initialise(Viewing, SEEDS), samples()[0]),
        "compute it in the forward",
    ),
    "a generator": (
        lambda: ensembles.initialise(lambda: holding(n for n in "12"), SEEDS),
        "must hold what can be copied",
    ),
    "scripted": (
        lambda: ensembles.initialise(lambda: torch.jit.script(nn.Linear(2, 2)), SEEDS),
        "take the module that it was made of",
    ),
    "nothing to stack": (lambda: ensembles.stack([nn.Tanh()]), "a parameter or a buffer at least"),
    "nothing to train": (
        lambda: train_with(ensembles.initialise(lambda: build().requires_grad_(False), SEEDS)),
        "all are frozen",
    ),
    "no whole batch": (lambda: ensembles.draw_orders([0], 5, 6, 1), "to the 5 samples, got 6"),
    "no rule of vmap": (
        lambda: ensembles.predict(ensembles.initialise(norm_of_its_own, SEEDS), samples()[0]),
        "cannot be taken together by torch.vmap: ",
    ),
    "complex Adam": (
        lambda: optimizers.adam_step(*({"w": torch.ones(2, dtype=torch.complex64)},) * 2, {}, lr=1),
        "adam_step takes real parameters, got w",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    run, sentence = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)):
        run()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"order": torch.zeros(2, 1, 4, dtype=torch.int64)}, "for M = 3 networks, got (2, 1, 4)"),
        ({"order": torch.zeros(3, 1, 4)}, "indices of samples, whole numbers from 0 to 23, got"),
        ({"order": torch.full((3, 1, 4), 24)}, "whole numbers from 0 to 23, got 24 to 24"),
        ({"order": torch.full((3, 1, 4), -1)}, "whole numbers from 0 to 23, got -1 to -1"),
        ({"lr": torch.ones(2)}, "lr must be one number or 3, one for each network, got (2,)"),
        ({"weight_decay": torch.ones(3, 1)}, "weight_decay must be one number or 3"),
        ({"chunk_size": 0}, "chunk_size must be None or a whole number"),
        ({"randomness": "some"}, "randomness must be"),
        ({"loss_fn": lambda z, t: z[:, 0]}, "loss_fn must return a scalar"),
        ({"targets": torch.zeros(5)}, "data and targets must have one batch size, got 24 and 5"),
    ],
)
def test_refusals_of_training(options, sentence):
    data, targets = samples()
    given = {
        "loss_fn": F.cross_entropy,
        "data": data,
        "targets": targets,
        "order": ensembles.draw_orders(SEEDS, 24, 4, 1),
        "lr": 0.1,
        **options,
    }
    ensemble = ensembles.initialise(build, SEEDS)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        ensembles.train(ensemble, step=optimizers.sgd_step, **given)
