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
        """Convert the model in place, and the batch where it holds no words or classes."""
        data, targets = self.batch
        if data.is_floating_point():
            data = data.to(dtype)
        if targets.is_floating_point():
            targets = targets.to(dtype)
        return Case(self.model.to(dtype), data, targets, self.loss_fn)

    def pass_to(self, function: Callable[..., Any], *more: object, **options: object) -> Any:
        """Call a function of model, loss, data and targets, as most of helpers are."""
        return function(self.model, self.loss_fn, self.data, self.targets, *more, **options)

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
    parts = [output.flatten(1)]
    for state in end if isinstance(end, tuple) else (end,):
        # The states at the end are (layers, B, H).
        parts.append(state.transpose(0, 1).flatten(1))
    return torch.cat(parts, 1).sin()


def _learned_start() -> nn.Module:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        h = self.h.expand(-1, len(inputs), -1).contiguous()
        c = self.c.expand(-1, len(inputs), -1).contiguous()
        return self.layer(inputs, (h, c))[0].flatten(1)

    h, c = nn.Parameter(torch.randn(1, 1, 3)), nn.Parameter(torch.randn(1, 1, 3))
    return Apply(run, layer=nn.LSTM(4, 3, batch_first=True), h=h, c=c)


def _packed(self: Apply, inputs: Tensor) -> Tensor:
    sequence = rnn.pack_padded_sequence(inputs, [3] * len(inputs), batch_first=True)
    outputs, _ = rnn.pad_packed_sequence(self.layer(sequence)[0], batch_first=True)
    return outputs.flatten(1)


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


def _after_convolution(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), layer, nn.Flatten())


def _instance_norm(tracking: bool) -> nn.Module:
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=tracking)
    return _after_convolution(norm)


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.ReLU(),
        nn.Linear(8, 10),
    )


def _shared() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh())


def _scalar() -> nn.Parameter:
    return nn.Parameter(torch.tensor(1.5))


Build = Callable[[], nn.Module]
ROWS: dict[str, Build] = {
    "linear": lambda: nn.Linear(3, 2),
    "bilinear": lambda: Apply(lambda m, x: m.b(x, x), b=nn.Bilinear(3, 3, 2)),
    "scalars": lambda: Apply(lambda m, x: (x * m.a).sin() + m.b, a=_scalar(), b=_scalar()),
    "prelu": lambda: nn.Sequential(nn.Linear(3, 3), nn.PReLU()),
    "tied weight": lambda: _tie(_two_layers()),
    "shared layer": _shared,
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
    "group norm": lambda: _after_convolution(nn.GroupNorm(2, 4)),
    "instance norm": lambda: _instance_norm(tracking=False),
    "instance norm tracking": lambda: _instance_norm(tracking=True),
    "instance norm eval": lambda: _instance_norm(tracking=True).eval(),
    "batch norm eval": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), with_statistics(nn.BatchNorm2d(4)), nn.ReLU(), nn.Flatten()
    ),
    "grouped": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2, stride=2), nn.Flatten()),
    "transposed": lambda: nn.Sequential(
        nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2), nn.Flatten()
    ),
}
# What builds a model, and the shape of one sample.
MODELS: dict[str, tuple[Build, tuple[int, ...]]] = {}
for _shape, _group in (
    ((3,), ROWS | WORDS),
    ((4, 4), SEQUENCES | RECURRENCES),
    ((2, 4, 4), IMAGES),
):
    for _name, _build in _group.items():
        MODELS[_name] = _build, _shape
CLASSIFIERS = {"mlp": (MLP, (1, 28, 28)), "cnn": (_cnn, (1, 8, 8))}
MODELS |= CLASSIFIERS


def make(name: str, batch_size: int = 3) -> Case:
    """Build a case; classifiers of digits get cross-entropy, the others a squared error."""
    build, shape = MODELS[name]
    case = made(build, shape, batch_size, name, words=name in WORDS)
    if name in CLASSIFIERS:
        case.targets = torch.arange(batch_size) * 7 % 10
        case.loss_fn = F.cross_entropy
    return case


def made(
    build: Callable[[], Any], shape: tuple[int, ...], size: int, name: str, words: bool = False
) -> Case:
    """Build a case of this name, in float64, from its own seed, so that two calls give equal ones.

    `build` gives a model, or a model and its loss.
    """
    with torch.random.fork_rng():
        torch.manual_seed(sum(map(ord, name)))
        model, loss_fn = _with_loss(build())
        # Some models change when they run, so another one tells the shape of the targets.
        other, _ = _with_loss(build())
        # Some refuse an empty batch.
        data = torch.randn(max(size, 1), *shape, dtype=torch.float64)
        if words:
            data = torch.randint(6, data.shape)
        with eagerly():
            output = _in_double(other)(data[:1].clone())  # some write into what they are given
        targets = torch.randn(size, *output.shape[1:], dtype=torch.float64)
        return Case(_in_double(model), data[:size], targets, loss_fn)


def _with_loss(built: Any) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    return built if isinstance(built, tuple) else (built, squared)


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
