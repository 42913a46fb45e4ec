"""Networks trained together are what each would be alone; what cannot be stacked is refused."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

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


def samples(size: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    return data, torch.randint(3, (size,), generator=generator)


def alone(seed, order, name, lr, weight_decay, make=build):
    """Train one network as everybody does."""
    data, targets = samples()
    torch.manual_seed(seed)
    model = make()
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


def test_running_statistics_are_those_of_training_alone():
    order = ensembles.draw_orders(SEEDS, 24, 8, 5)
    start = ensembles.initialise(build_with_norm, SEEDS)
    trained = ensembles.train(
        start, F.cross_entropy, *samples(), order, optimizers.sgd_step, lr=0.2
    )
    for index, seed in enumerate(SEEDS):
        expected = alone(seed, order[index], "sgd", 0.2, 0.0, make=build_with_norm)
        for name, tensor in trained.member(index).items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-10, atol=1e-10)
    assert start.buffers["1.running_mean"].abs().max() == 0  # what was given is as it was


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


def test_frozen_parameters_stay():
    def frozen() -> nn.Module:
        model = build()
        model[0].requires_grad_(False)
        return model

    start = ensembles.initialise(frozen, SEEDS)
    assert list(start.params) == ["2.weight", "2.bias"]
    order = ensembles.draw_orders(SEEDS, 24, 6, 3)
    trained = ensembles.train(
        start, F.cross_entropy, *samples(), order, optimizers.sgd_step, lr=0.5, weight_decay=0.5
    )
    assert torch.equal(trained.buffers["0.weight"], start.buffers["0.weight"])
    assert not torch.equal(trained.params["2.weight"], start.params["2.weight"])


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (nn.Linear(4, 4, bias=False).double() for _ in range(2))
            self.two.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(torch.tanh(self.one(x)))

    data, _ = samples()
    ensemble = ensembles.initialise(Tied, SEEDS)
    assert list(ensemble.params) == ["one.weight"]
    weight = ensemble.params["one.weight"][1]
    expected = torch.tanh(data @ weight.T) @ weight.T
    torch.testing.assert_close(ensembles.predict(ensemble, data)[1], expected)


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

    with pytest.raises(RuntimeError, match="called random operation while in randomness error"):
        train()
    for randomness, same in (("same", True), ("different", False)):
        weights = train(randomness=randomness).params["0.weight"]
        assert torch.equal(weights[0], weights[1]) == same


def build_relu() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def half_frozen() -> nn.Module:
    model = build()
    model[2].bias.requires_grad_(False)
    return model


def train_with(ensemble: ensembles.Ensemble) -> ensembles.Ensemble:
    order = ensembles.draw_orders(SEEDS, 24, 4, 1)
    step = optimizers.sgd_step
    return ensembles.train(ensemble, F.cross_entropy, *samples(), order, step, lr=0.1)


SHARED = build()
REFUSED = {
    "no seed": (
        lambda: ensembles.initialise(build, []),
        "seeds must hold a seed at least, got none",
    ),
    "no model": (lambda: ensembles.stack([]), "models must hold a model at least, got none"),
    "another width": (
        lambda: ensembles.stack([build(), build(6)]),
        "0 is Linear(in_features=4, out_features=5, bias=True)",
    ),
    "another layer of the same shapes": (
        lambda: ensembles.stack([build(), build_relu()]),
        "models must have one architecture: 1 is Tanh() in model 0 and ReLU() in model 1",
    ),
    "a layer more": (
        lambda: ensembles.stack([build(), nn.Sequential(*build(), nn.Tanh())]),
        "3 is missing in model 0 and Tanh() in model 1",
    ),
    "a layer less": (
        lambda: ensembles.stack([nn.Sequential(*build(), nn.Tanh()), build()]),
        "3 is Tanh() in model 0 and missing in model 1",
    ),
    "frozen in one": (
        lambda: ensembles.stack([build(), half_frozen()]),
        "bias (3,) fixed",
    ),
    "modes": (
        lambda: ensembles.stack([build(), build().eval()]),
        "models must have one mode: the model is in train mode in model 0 and in eval mode in "
        "model 1",
    ),
    "nothing to stack": (
        lambda: ensembles.stack([nn.Tanh(), nn.Tanh()]),
        "models must have a parameter or a buffer at least: model 0 is Tanh()",
    ),
    "nothing to train": (
        lambda: train_with(ensembles.initialise(lambda: build().requires_grad_(False), SEEDS)),
        "the ensemble has no parameter to train: all are frozen",
    ),
    "shared tensors": (
        lambda: ensembles.stack([SHARED, SHARED]),
        "0.weight of model 1 is 0.weight of model 0",
    ),
    "no whole batch": (
        lambda: ensembles.draw_orders([0], 5, 6, 1),
        "batch_size must be from 1 to the 5 samples, got 6",
    ),
    "orders of no network": (
        lambda: ensembles.draw_orders([], 5, 5, 1),
        "seeds must hold a seed at least, got none",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    run, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        run()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"order": torch.zeros(2, 1, 4, dtype=torch.int64)}, "for M = 3 networks, got (2, 1, 4)"),
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


def test_steps_run_under_vmap_with_a_rate_each():
    params = {"w": torch.ones(3, 2)}
    rates = torch.tensor([0.0, 0.1, 1.0])
    for step, _, _ in STEPS.values():
        new, _ = vmap(lambda p, r, step=step: step(p, p, {}, lr=r))(params, rates)
        assert torch.equal(new["w"][0], params["w"][0])
        assert new["w"][2, 0] < new["w"][1, 0] < 1
