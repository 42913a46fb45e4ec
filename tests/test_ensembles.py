"""Networks trained together are what each would be alone; what cannot be stacked is refused."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import compare, ensembles, optimizers
from tests.support import wild, zoo

SEEDS = (3, 0, 7)


def build(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3)).double()


def samples(shape: tuple[int, ...] = (4,)) -> torch.Tensor:
    return torch.randn(24, *shape, generator=torch.Generator().manual_seed(1)).double()


def alternating() -> nn.Module:
    def run(self: zoo.Apply, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (self.first if self.calls % 3 else self.second)(x)

    layers = {name: nn.Linear(4, 3) for name in ("unused", "first", "second")}
    return zoo.Apply(run, calls=0, **layers).double()


def rebinding() -> nn.Module:
    def run(self: zoo.Apply, x: torch.Tensor) -> torch.Tensor:
        outputs = self.layer(x) + self.shift
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return outputs - self.mean

    model = zoo.Apply(run, layer=nn.Linear(4, 3))
    model.register_buffer("mean", torch.zeros(3))
    model.register_buffer("shift", torch.rand(3), persistent=False)
    return model


MODELS = {  # what makes a network, and the shape of a sample
    "alternating": (alternating, (4,)),  # what a step does not use decays in none
    "rebinding": (rebinding, (4,)),  # a buffer bound anew, and one that is not saved
    "running statistics": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), (4,)),
    "compiled": (lambda: torch.compile(build(), backend="eager"), (4,)),
    **{name: zoo.MODELS[name] for name in ("frozen", "tied weight", "gru")},
}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", MODELS)
def test_each_is_what_it_would_be_alone(name, momentum):
    make, shape = MODELS[name]
    step = optimizers.momentum_step if momentum else optimizers.sgd_step
    lr, decay = torch.tensor([[0.25, 0.125, 0.0625], [0.0, 0.125, 0.25]]).double()
    data, order = samples(shape).requires_grad_(), ensembles.draw_orders(SEEDS, 24, 6, 6)
    targets = samples(make().double()(data).shape[1:])
    before = torch.get_rng_state()
    start = ensembles.initialize(lambda: make().double(), SEEDS)
    assert torch.equal(torch.get_rng_state(), before)
    given = start, F.mse_loss, data, targets, order, step
    for _ in range(2):  # the first leaves nothing on the networks that are given
        trained = ensembles.train(*given, lr=lr, weight_decay=decay)
    outputs = ensembles.predict(trained, data)
    assert not any(tensor.requires_grad for tensor in (outputs, *trained.params.values()))
    for index, seed in enumerate(SEEDS):
        with torch.compiler.set_stance("force_eager"):
            torch.manual_seed(seed)
            model = make().double()
            own = float(lr[index]), momentum
            optimizer = torch.optim.SGD(model.parameters(), *own, weight_decay=float(decay[index]))
            for indices in order[index]:
                optimizer.zero_grad()
                F.mse_loss(model(data[indices]), targets[indices]).backward()
                optimizer.step()
            expected = {key: tensor.clone() for key, tensor in model.state_dict().items()}
            compare.check(trained.member(index), expected, tolerance=1e-10)
            model.calls = 0  # what is no tensor starts anew
            torch.testing.assert_close(outputs[index], model(data).detach())


def test_orders():
    order = ensembles.draw_orders((4, 9), 10, 3, 7)
    for epoch in (*order[:, :3], *order[:, 3:6]):  # 3 batches of 3, and one sample left out
        assert len(epoch.unique()) == 9
    assert torch.equal(order[1], ensembles.draw_orders([9], 10, 3, 7)[0])


def holding(held: object) -> nn.Module:  # what is neither a parameter nor a buffer
    return zoo.Apply(lambda m, x: m.layer(x), layer=build()[0], held=held)


def changed(change) -> nn.Module:
    change(model := nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    return model


def viewing() -> nn.Module:
    weight = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    return zoo.Apply(lambda m, x: x @ m.part.T, weight=weight, part=weight[:])


def fill(model: zoo.Apply, x: torch.Tensor) -> torch.Tensor:
    return x.index_fill(1, torch.tensor([0]), 1.0)


def train(make=build, **changed) -> None:
    settings = {"order": ensembles.draw_orders(SEEDS, 24, 6, 2), "lr": 0.1, **changed}
    given = ensembles.initialize(make, SEEDS), F.cross_entropy, samples(), torch.arange(24) % 3
    ensembles.train(*given, step=optimizers.sgd_step, **settings)


SHARED = build()
DIFFERING = {
    "Tanh() in model 0 and ReLU() in": (build(), build(nn.ReLU)),
    "fixed": (build(), build().requires_grad_(False)),
    "eval mode": (build(), build().eval()),
    "held": (holding(1), holding(2)),
    "with the hash": (holding(torch.ones(1)), holding(torch.zeros(1))),
    "tied": (changed(len), changed(lambda m: setattr(m[1], "weight", m[0].weight))),
    "share": (SHARED, SHARED),
    "at least 1 model": (),
}
REFUSED = {word: lambda word=word: ensembles.stack(DIFFERING[word]) for word in DIFFERING} | {
    "random": lambda: train(lambda: build(nn.Dropout)),
    "hooks": lambda: train(lambda: changed(lambda m: m[0].bias.register_hook(len)).double()),
    "compute it in forward": lambda: train(viewing),
    "index_fill": lambda: train(lambda: nn.Sequential(build(), zoo.Apply(fill))),
    "frozen": lambda: train(lambda: build().requires_grad_(False)),
    "lr and weight_decay": lambda: train(lr=torch.ones(2)),
    "order": lambda: train(order=torch.full((3, 1, 4), -1)),
    "batch_size": lambda: ensembles.draw_orders([0], 3, 4, 1),
}


@pytest.mark.parametrize("word", REFUSED)
def test_refusals(word):
    with pytest.raises((ValueError, RuntimeError), match=re.escape(word)):
        REFUSED[word]()


@pytest.mark.parametrize("make", [zoo.ROWS["stash"], wild.ROWS["parameters in a list"]])
def test_what_a_network_holds_of_itself_is_its_own(make):
    models, data = [make().double() for _ in SEEDS], samples((3,))
    expected = torch.stack([model(data).detach() for model in models])
    torch.testing.assert_close(ensembles.predict(ensembles.stack(models), data), expected)
