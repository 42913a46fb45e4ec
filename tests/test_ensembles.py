"""Networks trained together are what each would be alone; what cannot be stacked is refused."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import benchmark, compare, ensembles, optimizers
from tests.support import wild, zoo

STEPS = {
    "sgd": (optimizers.sgd_step, torch.optim.SGD, {}),
    "momentum": (optimizers.momentum_step, torch.optim.SGD, {"momentum": 0.9}),
    "adam": (optimizers.adam_step, torch.optim.Adam, {}),
}
SEEDS = (3, 0, 7)


def build(width: int = 5, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), activation(), nn.Linear(width, 3)).double()


def half_frozen() -> nn.Module:
    model = build()
    model[2].bias.requires_grad_(False)
    return model


def samples(shape: tuple[int, ...] = (4,)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(24, *shape, generator=generator, dtype=torch.float64)


def train(ensemble: ensembles.Ensemble, **changed: object) -> ensembles.Ensemble:
    """Train networks of four inputs and three outputs for two steps, or as it is said."""
    settings = {
        "loss_fn": F.cross_entropy,
        "data": samples(),
        "targets": torch.arange(24) % 3,
        "order": ensembles.draw_orders(range(len(ensemble)), 24, 6, 2),
        "step": optimizers.sgd_step,
        "lr": 0.1,
        **changed,
    }
    return ensembles.train(ensemble, **settings)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adam_counts_its_steps_in_half_precision(dtype):
    """Which half precision cannot, from 256 on."""
    torch.manual_seed(0)
    start, options = torch.zeros(3, 2, dtype=dtype), {"lr": 1e-3, "eps": 1e-4}
    leaf, params, state = start.clone().requires_grad_(), {"w": start}, {}
    optimizer = torch.optim.Adam([leaf], **options)
    for _ in range(300):
        leaf.grad = torch.rand(3, 2).to(dtype)
        params, state = optimizers.adam_step(params, {"w": leaf.grad.clone()}, state, **options)
        optimizer.step()
    torch.testing.assert_close(params["w"], leaf.detach(), rtol=0.02, atol=0)
    assert not start.any(), "nothing was written in place"


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
    """Make a layer that binds a buffer anew, counts, and has a buffer that is not saved."""

    def run(self: zoo.Apply, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        outputs = self.layer(x) * self.calls + self.shift
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return outputs - self.mean

    model = zoo.Apply(run, layer=nn.Linear(4, 3), calls=0)
    model.register_buffer("mean", torch.zeros(3))
    model.register_buffer("shift", torch.rand(3), persistent=False)
    return model


def cached() -> nn.Module:
    """Make a layer that keeps what it has computed once, of a buffer that is not saved."""

    def run(self: zoo.Apply, x: torch.Tensor) -> torch.Tensor:
        if "cos" not in self.cache:
            self.cache["cos"] = self.angles.cos()
        return self.layer(x * self.cache["cos"])

    model = zoo.Apply(run, layer=nn.Linear(4, 3), cache={})
    model.register_buffer("angles", torch.arange(4.0), persistent=False)
    return model


# What makes a network, and the shape of a sample.
MODELS = {
    "plain": (build, (4,)),
    "alternating": (alternating, (4,)),
    "rebinding": (rebinding, (4,)),
    "cached": (cached, (4,)),
    "running statistics": (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), (4,)),
    "compiled": (lambda: torch.compile(build(), backend="eager"), (4,)),
}
MODELS |= {name: zoo.MODELS[name] for name in ("frozen", "tied weight", "gru", "lstm cell")}


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize(
    ("name", "step"),
    [*((name, "sgd") for name in MODELS), ("alternating", "momentum"), ("alternating", "adam")],
)
def test_each_is_what_it_would_be_alone(name, step, chunk_size):
    make, shape = MODELS[name]
    take, kind, options = STEPS[step]
    rates = {"lr": [0.25, 0.125, 0.0625], "weight_decay": [0.0, 0.125, 0.25]}
    data, order = samples(shape).requires_grad_(), ensembles.draw_orders(SEEDS, 24, 6, 6)
    targets = samples(make().double()(data).shape[1:])
    before = torch.get_rng_state()
    start = ensembles.initialise(lambda: make().double(), SEEDS)
    assert torch.equal(torch.get_rng_state(), before)
    given = (F.mse_loss, data, targets, order, take)
    tensors = {name: torch.tensor(values).double() for name, values in rates.items()}
    for _ in range(2):  # the first leaves nothing on the networks that are given
        trained = ensembles.train(start, *given, **tensors, chunk_size=chunk_size)
    outputs = ensembles.predict(trained, data, chunk_size=chunk_size)
    assert not outputs.requires_grad
    for index, seed in enumerate(SEEDS):
        with torch.compiler.set_stance("force_eager"):
            torch.manual_seed(seed)
            model = make().double()
            own = {name: values[index] for name, values in rates.items()}
            optimizer = kind(model.parameters(), **own, **options)
            for indices in order[index]:
                optimizer.zero_grad()
                F.mse_loss(model(data[indices]), targets[indices]).backward()
                optimizer.step()
            expected = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
            compare.check(trained.member(index), expected, tolerance=1e-10)
            assert not any(tensor.requires_grad for tensor in trained.params.values())
            model.calls = 0  # what is no tensor starts anew
            torch.testing.assert_close(outputs[index], model(data).detach())


def test_a_loss_meets_the_parameters_of_each_as_what_they_are():
    start = ensembles.initialise(build, SEEDS)
    decayed = {*start.model.parameters()}

    def loss_fn(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        met = [p for p in start.model.parameters() if p in decayed and type(p) is nn.Parameter]
        return F.cross_entropy(predictions, targets) + sum(p.square().sum() for p in met)

    expected = train(start, weight_decay=2.0).params
    compare.check(train(start, loss_fn=loss_fn).params, expected, tolerance=1e-10)


def test_chunks_bound_the_memory():
    ensemble = ensembles.initialise(lambda: build(width=64), range(16))

    def peak(size: int) -> int:
        run = lambda: train(ensemble, step=optimizers.adam_step, chunk_size=size)  # noqa: E731
        return benchmark.memory(run).peak

    assert peak(2) < peak(16) / 3


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


def test_random_numbers_are_refused():
    ensemble = ensembles.initialise(lambda: build(activation=nn.Dropout), SEEDS)
    for refused in (train, lambda ensemble: ensembles.predict(ensemble, samples())):
        with pytest.raises(ValueError, match="draws random numbers"):
            refused(ensemble)


def holding(held: object) -> nn.Module:
    """Make a layer with something on it that is neither a parameter nor a buffer."""
    return zoo.Apply(lambda m, x: m.layer(x), layer=build()[0], held=held)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def tied() -> nn.Module:
    model = two_layers()
    model[1].weight = model[0].weight
    return model


def encoder(**options: object) -> nn.Module:
    return nn.TransformerEncoderLayer(4, **{"nhead": 1, "dim_feedforward": 8, **options})


SHARED = build()
DIFFERING = {
    "0 is Linear(in_features=4, out_features=5": (build(), build(6)),
    "1 is Tanh() in model 0 and ReLU() in model 1": (build(), build(activation=nn.ReLU)),
    "3 is missing in model 0 and Tanh() in": (build(), nn.Sequential(*build(), nn.Tanh())),
    "3 is Tanh() in model 0 and missing in": (nn.Sequential(*build(), nn.Tanh()), build()),
    "2.bias is (3,) torch.float64 in model 0 and (3,) torch.": (build(), half_frozen()),
    "the model is in train mode in model 0 and in eval": (build(), build().eval()),
    "self_attn.num_heads is 1 in model 0 and 2": (encoder(), encoder(nhead=2)),
    "held is [1, (2,)] in model 0 and [1, (3,)]": (holding([1, (2,)]), holding([1, (3,)])),
    "held is a tensor (1,), its numbers": (holding(torch.ones(1)), holding(torch.zeros(1))),
    "tanh in model 0": (holding(torch.tanh), holding(torch.relu)),
    "tied to 0.weight in model 1": (two_layers(), tied()),
    "0.weight of model 1 is 0.weight of model 0": (SHARED, SHARED),
}


@pytest.mark.parametrize("sentence", DIFFERING)
def test_networks_that_one_structure_cannot_stand_for_are_refused(sentence):
    """Else all networks would silently compute with what the first one holds."""
    with pytest.raises(ValueError, match=re.escape(sentence)):
        ensembles.stack(DIFFERING[sentence])


def test_what_is_the_same_is_stacked():
    def make() -> list[nn.Module]:
        return [
            holding({"f": lambda x: x + 1}),
            holding(torch.ones(2)),
            nn.MultiheadAttention(4, 2),
            encoder(activation=F.silu),
            torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        ]

    for pair in zip(make(), make(), strict=True):
        assert len(ensembles.stack(pair)) == 2


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].register_forward_hook(lambda module, inputs, outputs: outputs * module.weight[0, 0])
    model[1].other = model[0].forward
    return model


def uncopied() -> nn.Module:
    return zoo.Apply(lambda m, x: m.layer(x), layer=nn.Linear(3, 3), held=(n for n in "12"))


OF_ITSELF = uncopied, zoo.ROWS["stash"], wild.LINKED["weak reference to the parent"], hooked
OF_ITSELF += wild.ROWS["wrapped inside"], wild.ROWS["parameters in a list"]


@pytest.mark.parametrize("make", OF_ITSELF)
def test_what_a_network_holds_of_itself_is_its_own(make):
    models, data = [make().double() for _ in SEEDS], samples((3,))
    expected = torch.stack([model(data).detach() for model in models])
    torch.testing.assert_close(ensembles.predict(ensembles.stack(models), data), expected)


def initialised(make) -> ensembles.Ensemble:
    return ensembles.initialise(make, SEEDS)


def viewing() -> nn.Module:
    weight = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    return zoo.Apply(lambda m, x: x @ m.part.T, weight=weight, part=weight[:2])


def with_a_hook() -> nn.Module:
    model = build()
    next(model.parameters()).register_hook(torch.neg)
    return model


def filled(model: zoo.Apply, x: torch.Tensor) -> torch.Tensor:
    return model.layer(x.index_fill(1, torch.tensor([0]), 1.0))


COMPLEX = {"w": torch.ones(2, dtype=torch.complex64)}
# By what the message names, the call.
REFUSED = {
    "weight has hooks on its gradient": lambda: train(initialised(with_a_hook)),
    "1 hooks in model 1": lambda: ensembles.stack([build(), with_a_hook()]),
    "inputs[0] must be a tensor (B, ...), got ndarray": (
        lambda: ensembles.predict(initialised(build), [samples().numpy()])
    ),
    "seeds must hold a seed": lambda: ensembles.initialise(build, []),
    "models must hold a model": lambda: ensembles.stack([]),
    "compute it in the forward": lambda: ensembles.predict(initialised(viewing), samples()),
    "scripted": lambda: initialised(lambda: torch.jit.script(nn.Linear(2, 2))),
    "a parameter or a buffer at least": lambda: ensembles.stack([nn.Tanh()]),
    "all are frozen": lambda: train(initialised(lambda: build().requires_grad_(False))),
    "to the 5 samples, got 6": lambda: ensembles.draw_orders([0], 5, 6, 1),
    "cannot be taken together by torch.vmap: ": lambda: ensembles.predict(
        initialised(lambda: nn.utils.parametrizations.spectral_norm(build()[0])), samples()
    ),
    "cannot be taken together: torch.index_fill has wrong": lambda: ensembles.predict(
        initialised(lambda: zoo.Apply(filled, layer=build()[0])), samples()
    ),
    "adam_step takes real parameters, got w": (
        lambda: optimizers.adam_step(COMPLEX, COMPLEX, {}, lr=1)
    ),
}
NUMBERS = "indices of samples, whole numbers from 0 to 23, got"
# By what the message names, what differs from a right training.
OF_TRAINING: dict[str, dict[str, object]] = {
    "for M = 3 networks, got (2, 1, 4)": {"order": torch.zeros(2, 1, 4, dtype=torch.int64)},
    f"{NUMBERS} torch.float32": {"order": torch.zeros(3, 1, 4)},
    f"{NUMBERS} 24 to 24": {"order": torch.full((3, 1, 4), 24)},
    f"{NUMBERS} -1 to -1": {"order": torch.full((3, 1, 4), -1)},
    "lr must be one number or 3, one for each network, got (2,)": {"lr": torch.ones(2)},
    "weight_decay must be one number or 3": {"weight_decay": torch.ones(3, 1)},
    "chunk_size must be a whole number": {"chunk_size": 0},
    "loss_fn must return a scalar": {"loss_fn": lambda z, t: z[:, 0]},
    "data and targets must have one batch size, got 24 and 5": {"targets": torch.zeros(5)},
}


@pytest.mark.parametrize("words", [*REFUSED, *OF_TRAINING])
def test_refusals(words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        REFUSED.get(words, lambda: train(initialised(build), **OF_TRAINING[words]))()
