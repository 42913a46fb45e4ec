"""Small models of many kinds, each with a batch and a loss."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn

from helpers.models import MLP


@dataclass
class Case:
    """A model and one batch to differentiate it at."""

    model: nn.Module
    data: Tensor
    targets: Tensor
    loss_fn: Callable[[Tensor, Tensor], Tensor]

    def to(self, dtype: torch.dtype) -> "Case":
        data, targets = (t.to(dtype) if t.is_floating_point() else t for t in self.batch)
        return Case(self.model.to(dtype), data, targets, self.loss_fn)

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        return self.data, self.targets

    @property
    def args(self) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]:
        return self.model, self.loss_fn, self.data, self.targets


def squared(predictions: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error; its targets have the shape of the predictions."""
    return (predictions - targets).square().sum() / 2


class Apply(nn.Module):
    """A module whose forward is a function of it: layers by keyword, then what to do with them."""

    def __init__(self, forward: Callable[..., Tensor], **layers: object) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = forward

    def forward(self, inputs: Tensor) -> Tensor:
        return self.run(self, inputs)


def _buffered(write: Callable[..., object]) -> nn.Module:
    """Make a layer whose output depends on a buffer, which `write` changes in the forward."""

    def run(self: Apply, inputs: Tensor) -> Tensor:
        write(self, inputs)
        return self.fc(inputs * self.seen) * self.calls

    seen = nn.Buffer(torch.tensor([1.0, -2.0, 0.5]))
    return Apply(run, fc=nn.Linear(3, 2), seen=seen, calls=nn.Buffer(torch.tensor(1)))


def _rebind(self: Apply, inputs: Tensor) -> None:
    self.calls = self.calls + 1
    self.seen = 0.5 * self.seen + inputs.mean(0)


def _tie(model: nn.Sequential) -> nn.Sequential:
    model[2].weight = model[0].weight
    return model


def _freeze(model: nn.Sequential) -> nn.Sequential:
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def _two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


def _stash(self: Apply, inputs: Tensor) -> Tensor:
    self.activation = self.fc(inputs).tanh()
    return self.head(self.activation)


def with_statistics(norm: nn.Module) -> nn.Module:
    """Give a normalization running statistics other than 0 and 1, if it has any, and use them."""
    if getattr(norm, "running_mean", None) is not None:
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    return norm.eval()


def _last(layer: type[nn.RNNBase], **options: object) -> nn.Module:
    layer = layer(4, 3, batch_first=True, **options)
    return Apply(lambda m, x: m.layer(x)[0][:, -1], layer=layer)


def _every_end(self: Apply, inputs: Tensor) -> Tensor:
    output, end = self.layer(inputs)
    ends = end if isinstance(end, tuple) else (end,)
    parts = (output, *(each.transpose(0, 1) for each in ends))
    return torch.cat([part.flatten(1) for part in parts], 1).sin()


def _learned_start() -> nn.Module:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        start = tuple(each.expand(-1, len(inputs), -1).contiguous() for each in (self.h, self.c))
        return self.layer(inputs, start)[0].flatten(1)

    states = {name: nn.Parameter(torch.randn(1, 1, 3)) for name in "hc"}
    return Apply(run, layer=nn.LSTM(4, 3, batch_first=True), **states)


def _packed(self: Apply, inputs: Tensor) -> Tensor:
    sequence = rnn.pack_padded_sequence(inputs, [3] * len(inputs), batch_first=True)
    return rnn.pad_packed_sequence(self.layer(sequence)[0], batch_first=True)[0].flatten(1)


def _force(self: Apply, inputs: Tensor) -> Tensor:
    """Differentiate a layer inside the model, so that the loss is differentiated twice."""
    return torch.func.grad(lambda x: self.layer(x)[0].sin().sum())(inputs)


def _cell(cell: nn.Module) -> nn.Module:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        state = self.cell(inputs[:, 1], self.cell(inputs[:, 0]))
        return state[0] if isinstance(state, tuple) else state

    return Apply(run, cell=cell)


weight_norm = nn.utils.parametrizations.weight_norm


@torch.no_grad()
def _hooked(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    model = norm(nn.Linear(3, 2))
    model(torch.ones(1, 3))  # or the oracle could not copy it
    return model


def _images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten())


def _instance_norm(tracking: bool) -> nn.Module:
    return _images(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, 1e-5, 0.1, True, tracking))


def _cnn() -> nn.Module:
    body = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 10))


Build = Callable[[], nn.Module]
ROWS: dict[str, Build] = {
    "linear": lambda: nn.Linear(3, 2),
    "bilinear": lambda: Apply(lambda m, x: m.b(x, x), b=nn.Bilinear(3, 3, 2)),
    "scalars": lambda: Apply(
        lambda m, x: (x * m.a).sin() + m.b,
        **{name: nn.Parameter(torch.tensor(1.5)) for name in "ab"},
    ),
    "prelu": lambda: nn.Sequential(nn.Linear(3, 3), nn.PReLU()),
    "tied weight": lambda: _tie(_two_layers()),
    "shared layer": lambda: nn.Sequential(*[nn.Linear(3, 3), nn.Tanh()] * 2),
    "frozen": lambda: _freeze(_two_layers()),
    "unused": lambda: Apply(lambda m, x: m.a(x), z=nn.Linear(2, 2), a=nn.Linear(3, 2)),
    "no_grad inside": lambda: Apply(lambda m, x: torch.no_grad()(m.a)(x), a=nn.Linear(3, 2)),
    "buffer counts": lambda: _buffered(lambda m, x: (m.calls.add_(1), m.seen.mul_(1.5))),
    "buffer in place": lambda: _buffered(lambda m, x: (m.calls.add_(1), m.seen.add_(x[0]))),
    "buffer rebound": lambda: _buffered(_rebind),
    "stash": lambda: Apply(_stash, fc=nn.Linear(3, 3), head=nn.Linear(3, 2)),
    "weight norm hook": lambda: _hooked(nn.utils.weight_norm),
    "weight norm": lambda: weight_norm(nn.Linear(3, 2)),
    "spectral norm hook": lambda: _hooked(nn.utils.spectral_norm),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)),
}
WORDS: dict[str, Build] = {
    "embedding": lambda: nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(9, 2)),
    "embedding padding": lambda: nn.Embedding(6, 3, padding_idx=0),
    "embedding bag": lambda: nn.EmbeddingBag(6, 3),
}
SEQUENCES: dict[str, Build] = {
    "lstm": lambda: _last(nn.LSTM),
    "lstm projected": lambda: _last(nn.LSTM, proj_size=2),
    "gru": lambda: _last(nn.GRU, num_layers=2, bidirectional=True),
    "rnn relu": lambda: _last(nn.RNN, nonlinearity="relu"),
    "rnn hx=None": lambda: Apply(
        lambda m, x: m.layer(input=x, hx=None)[0].sum(1),
        layer=nn.RNN(4, 3, bias=False, batch_first=True),
    ),
    "lstm cell": lambda: _cell(nn.LSTMCell(4, 3)),
    "gru cell": lambda: _cell(nn.GRUCell(4, 3)),
    "encoder train": lambda: nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True),
    "encoder eval": lambda: nn.TransformerEncoderLayer(4, 2, 6, 0.1, batch_first=True).eval(),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
    "depthwise": lambda: nn.Conv1d(4, 4, 3, groups=4, padding=1, padding_mode="circular"),
}
RECURRENCES: dict[str, Build] = {
    "LSTM every end": lambda: Apply(
        _every_end, layer=nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True)
    ),
    "LSTM steps in front": lambda: Apply(
        lambda m, x: m.layer(x.transpose(0, 1))[0].transpose(0, 1).flatten(1), layer=nn.LSTM(4, 3)
    ),
    "GRU without a batch": lambda: Apply(
        lambda m, x: m.layer(x[0])[0].flatten()[None], layer=nn.GRU(4, 3, bidirectional=True)
    ),
    "LSTM from a learned start": _learned_start,
    "LSTM of packed sequences": lambda: Apply(_packed, layer=nn.LSTM(4, 3, batch_first=True)),
    "LSTM with a computed weight": lambda: Apply(
        _every_end, layer=weight_norm(nn.LSTM(4, 3, batch_first=True), "weight_hh_l0")
    ),
    "GRU differentiated twice": lambda: Apply(_force, layer=nn.GRU(4, 3, batch_first=True)),
}
IMAGES: dict[str, Build] = {
    "group norm": lambda: _images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)),
    "instance norm": lambda: _instance_norm(tracking=False),
    "instance norm tracking": lambda: _instance_norm(tracking=True),
    "instance norm eval": lambda: _instance_norm(tracking=True).eval(),
    "batch norm eval": lambda: _images(
        nn.Conv2d(2, 4, 3), with_statistics(nn.BatchNorm2d(4)), nn.ReLU()
    ),
    "grouped": lambda: _images(nn.Conv2d(2, 4, 3, groups=2, stride=2)),
    "transposed": lambda: _images(nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2)),
}
SHAPES = [((3,), ROWS | WORDS), ((4, 4), SEQUENCES | RECURRENCES), ((2, 4, 4), IMAGES)]
CLASSIFIERS = {"mlp": (MLP, (1, 28, 28)), "cnn": (_cnn, (1, 8, 8))}
MODELS = {name: (build, shape) for shape, group in SHAPES for name, build in group.items()}
MODELS |= CLASSIFIERS


def make(name: str, batch_size: int = 3) -> Case:
    """Build a case; classifiers of digits get cross-entropy, the others a squared error."""
    case = made(*MODELS[name], batch_size, name, words=name in WORDS)
    if name in CLASSIFIERS:
        case.targets, case.loss_fn = torch.arange(batch_size) * 7 % 10, F.cross_entropy
    return case


def made(
    build: Callable[[], Any], shape: tuple[int, ...], size: int, name: str, words: bool = False
) -> Case:
    """Build a case of this name, in float64, from its own seed, so that two calls give equal ones.

    `build` gives a model, or a model and its loss.
    """
    with torch.random.fork_rng():
        torch.manual_seed(sum(map(ord, name)))
        (model, loss_fn), (other, _) = (
            built if isinstance(built, tuple) else (built, squared) for built in (build(), build())
        )
        data = torch.randn(max(size, 1), *shape, dtype=torch.float64)
        data = torch.randint(6, data.shape) if words else data
        # Some models change when they run, or what they are given, and some refuse B = 0.
        with eagerly():
            output = _in_double(other)(data[:1].clone())
        targets = torch.randn(size, *output.shape[1:], dtype=torch.float64)
        return Case(_in_double(model), data[:size], targets, loss_fn)


def eagerly() -> AbstractContextManager[None]:
    """Run what was compiled as it was written; nothing was, where nobody has imported Dynamo."""
    compiled = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _in_double(model: nn.Module) -> nn.Module:
    """Convert plain tensors too, in place, so that what a list holds stays a parameter."""
    model.double()
    for module in model.modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                setattr(module, key, value.double())
    return model
