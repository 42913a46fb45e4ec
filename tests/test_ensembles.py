"""Networks trained together are what each would be alone; what cannot be stacked is refused."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import compare, ensembles, optimizers
from tests.support import wild, zoo

STEPS = {
    "sgd": (optimizers.sgd_step, {}),
    "momentum": (optimizers.momentum_step, {"momentum": 0.9}),
}
SEEDS = (3, 0, 7)


def build(width: int = 5, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), activation(), nn.Linear(width, 3)).double()


def samples(shape: tuple[int, ...] = (4,)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(24, *shape, generator=generator, dtype=torch.float64)


def alternating() -> nn.Module:
    """Make a network with a layer that is never used, and two that are used in turns.

    In torch the `.grad` of the others is None: no weight decay, no momentum, no step is counted.
    """

    def run(self: zoo.Apply, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.second(x) if self.calls % 3 == 0 else self.first(x)

    layers = {name: nn.Linear(4, 3) for name in ("unused", "first", "second")}
    return zoo.Apply(run, calls=0, **layers).double()


def rebinding() -> nn.Module:
    """Make a layer that binds a buffer anew, and has a buffer that is not saved."""

    def run(self: zoo.Apply, x: torch.Tensor) -> torch.Tensor:
        outputs = self.layer(x) + self.shift
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return outputs - self.mean

    model = zoo.Apply(run, layer=nn.Linear(4, 3))
    model.register_buffer("mean", torch.zeros(3))
    model.register_buffer("shift", torch.rand(3), persistent=False)
    return model


# What makes a network, and the shape of a sample.
MODELS = {
    "alternating": (alternating, (4,)),
    "rebinding": (rebinding, (4,)),
    "running statistics": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), (4,)),
    "compiled": (lambda: torch.compile(build(), backend="eager"), (4,)),
}
MODELS |= {name: zoo.MODELS[name] for name in ("frozen", "tied weight", "gru")}


@pytest.mark.parametrize(
    ("name", "step"), [*((name, "sgd") for name in MODELS), ("alternating", "momentum")]
)
def test_each_is_what_it_would_be_alone(name, step):
    make, shape = MODELS[name]
    take, options = STEPS[step]
    rates = {"lr": [0.25, 0.125, 0.0625], "weight_decay": [0.0, 0.125, 0.25]}
    data, order = samples(shape).requires_grad_(), ensembles.draw_orders(SEEDS, 24, 6, 6)
    targets = samples(make().double()(data).shape[1:])
    before = torch.get_rng_state()
    start = ensembles.initialise(lambda: make().double(), SEEDS)
    assert torch.equal(torch.get_rng_state(), before)
    given = (F.mse_loss, data, targets, order, take)
    tensors = {name: torch.tensor(values).double() for name, values in rates.items()}
    for _ in range(2):  # the first leaves nothing on the networks that are given
        trained = ensembles.train(start, *given, **tensors)
    outputs = ensembles.predict(trained, data)
    assert not outputs.requires_grad
    for index, seed in enumerate(SEEDS):
        with torch.compiler.set_stance("force_eager"):
            torch.manual_seed(seed)
            model = make().double()
            own = {name: values[index] for name, values in rates.items()}
            optimizer = torch.optim.SGD(model.parameters(), **own, **options)
            for indices in order[index]:
                optimizer.zero_grad()
                F.mse_loss(model(data[indices]), targets[indices]).backward()
                optimizer.step()
            expected = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
            compare.check(trained.member(index), expected, tolerance=1e-10)
            assert not any(tensor.requires_grad for tensor in trained.params.values())
            model.calls = 0  # what is no tensor starts anew
            torch.testing.assert_close(outputs[index], model(data).detach())


def test_orders():
    order = ensembles.draw_orders((4, 9), 10, 3, 7)
    for row in order:
        for epoch in range(2):  # 3 batches of 3 in each, one sample left out
            assert len(row[3 * epoch : 3 * epoch + 3].unique()) == 9
    assert torch.equal(order[1], ensembles.draw_orders([9], 10, 3, 7)[0])
    with pytest.raises(ValueError, match="batch_size"):
        ensembles.draw_orders([0], 3, 4, 1)


def holding(held: object) -> nn.Module:
    """Make a layer with something on it that is neither a parameter nor a buffer."""
    return zoo.Apply(lambda m, x: m.layer(x), layer=build()[0], held=held)


def changed(change) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    change(model)
    return model


SHARED = build()
DIFFERING = {
    "Tanh() in model 0 and ReLU() in": (build(), build(activation=nn.ReLU)),
    "fixed": (build(), build().requires_grad_(False)),
    "eval mode": (build(), build().eval()),
    "held": (holding(1), holding(2)),
    "numbers": (holding(torch.ones(1)), holding(torch.zeros(1))),
    "tied": (changed(len), changed(lambda m: setattr(m[1], "weight", m[0].weight))),
    "share": (SHARED, SHARED),
}


@pytest.mark.parametrize("word", DIFFERING)
def test_networks_that_one_structure_cannot_stand_for_are_refused(word):
    """Else all networks would silently compute with what the first one holds."""
    with pytest.raises(ValueError, match=re.escape(word)):
        ensembles.stack(DIFFERING[word])


@pytest.mark.parametrize("make", [zoo.ROWS["stash"], wild.ROWS["parameters in a list"]])
def test_what_a_network_holds_of_itself_is_its_own(make):
    models, data = [make().double() for _ in SEEDS], samples((3,))
    expected = torch.stack([model(data).detach() for model in models])
    torch.testing.assert_close(ensembles.predict(ensembles.stack(models), data), expected)


def viewing() -> nn.Module:
    weight = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    return zoo.Apply(lambda m, x: x @ m.part.T, weight=weight, part=weight[:])


def filled(model: zoo.Apply, x: torch.Tensor) -> torch.Tensor:
    return model.layer(x.index_fill(1, torch.tensor([0]), 1.0))


# By a word of the message, what makes a network, and what differs from a right training.
REFUSED = {
    "random": (lambda: build(activation=nn.Dropout), {}),
    "hooks": (lambda: changed(lambda m: m[0].bias.register_hook(torch.neg)).double(), {}),
    "compute it in the forward": (viewing, {}),
    "index_fill": (lambda: zoo.Apply(filled, layer=build()[0]), {}),
    "frozen": (lambda: build().requires_grad_(False), {}),
    "lr and weight_decay": (build, {"lr": torch.ones(2)}),
    "order": (build, {"order": torch.full((3, 1, 4), -1)}),
}


@pytest.mark.parametrize("word", REFUSED)
def test_refusals(word):
    make, changed = REFUSED[word]
    settings = {"order": ensembles.draw_orders(SEEDS, 24, 6, 2), "lr": 0.1, **changed}
    with pytest.raises((ValueError, RuntimeError), match=word):
        ensembles.train(
            ensembles.initialise(make, SEEDS),
            F.cross_entropy,
            samples(),
            torch.arange(24) % 3,
            step=optimizers.sgd_step,
            **settings,
        )
