"""Habits of real models, small: what they keep, wrap, write, cache and cannot batch."""

import threading
import warnings
import weakref
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.support.zoo import Apply, Case, made, squared, with_statistics


def _weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(2, 3))


def _one(run: Callable[..., Tensor], **more: object) -> nn.Module:
    return Apply(run, fc=nn.Linear(3, 2), **more)


def _two(run: Callable[..., Tensor], **more: object) -> nn.Module:
    return Apply(run, fc=nn.Linear(3, 3), head=nn.Linear(3, 2), **more)


def _tokens_as_images(self: Apply, inputs: Tensor) -> Tensor:
    tokens = (self.conv(inputs).flatten(2).transpose(1, 2) * self.scale).contiguous()
    return self.norm(tokens.transpose(1, 2).unflatten(2, (2, 2))).flatten(1)


def _stem(self: Apply, inputs: Tensor) -> Tensor:
    tokens = self.norm(self.conv(inputs)).flatten(2).transpose(1, 2)
    return (tokens * self.scale).sin().flatten(1)


def _norm_then_added(self: Apply, inputs: Tensor) -> Tensor:
    maps = self.norm(self.conv(inputs))
    maps += self.scale.view(-1, 1, 1)
    maps.mul_(0.5)[:, 0] *= 3
    return maps.flatten(2).transpose(1, 2).reshape(len(inputs), -1).sin_()


def _normalized(run: Callable[..., Tensor]) -> nn.Module:
    norm = with_statistics(nn.BatchNorm2d(4))
    scale = nn.Parameter(torch.randn(4))
    return Apply(run, conv=nn.Conv2d(2, 4, 3), norm=norm, scale=scale)


def _nested(self: Apply, inputs: Tensor) -> Tensor:
    self.cache["inner"]["calls"].append(1)
    return self.fc(inputs) * len(self.cache["inner"]["calls"])


class Slotted:
    __slots__ = ("steps",)


class Memory(Slotted):
    def __init__(self) -> None:
        self.steps, self.scale = [], 1.0


def _object(self: Apply, inputs: Tensor) -> Tensor:
    self.cache.steps = self.cache.steps.copy()
    self.cache.steps.append(1)
    self.cache.scale *= 1.5
    return self.fc(inputs) * self.cache.scale * len(self.cache.steps)


def _hidden_states(self: Apply, inputs: Tensor) -> Tensor:
    if not self.cache:
        self.fc.register_forward_hook(lambda m, i, o: self.seen.append(o.tanh()))
        self.cache.append("registered")
    self.fc(inputs)
    return self.head(sum(self.seen))


def _wrapped() -> nn.Module:
    layer = nn.Linear(3, 3)
    forward = layer.forward
    layer.forward = lambda x: forward(x)
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 2))


def _listed() -> nn.Module:
    model = Apply(lambda m, x: m.fc(x) @ m.weights[0] + m.weights[1], fc=nn.Linear(3, 3))
    model.extra, model.shift = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))
    model.weights = [model.extra, model.shift]
    return model


class Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor) -> Tensor:
        return inputs @ weight.T

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grads: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return grads @ weight, grads.T @ inputs


def _in_a_closure() -> nn.Module:
    fc = nn.Linear(3, 2)
    weight, bias = fc.parameters()

    def twice(x: Tensor) -> Tensor:
        return F.linear(x, torch.stack([weight, weight]).sum(0), bias=bias)

    return Apply(lambda m, x: m.fc(x) + twice(x), fc=fc)


def _checkpointed(reentrant: bool) -> nn.Module:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return self.head(checkpoint(self.fc, hidden, use_reentrant=reentrant).tanh())

    return Apply(run, first=nn.Linear(3, 3), fc=nn.Linear(3, 3), head=nn.Linear(3, 2))


def _scripted() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)))


def _item(self: Apply, inputs: Tensor) -> Tensor:
    outputs = self.fc(inputs)
    return outputs * 2 if outputs.sum().item() > 0 else outputs


def _padded() -> nn.Module:
    """With a mask of padding, on the fast path of evaluation."""

    def run(self: Apply, tokens: Tensor) -> Tensor:
        padding = (tokens == 0) & (torch.arange(3) > 0)
        return self.head(self.encoder(self.words(tokens), src_key_padding_mask=padding)[:, 0])

    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
    with warnings.catch_warnings(action="ignore"):
        encoder = nn.TransformerEncoder(layer, 1)
    return Apply(run, words=nn.Embedding(6, 4), encoder=encoder, head=nn.Linear(4, 2)).eval()


Loss = Callable[[Tensor, Tensor], Tensor]


def _auxiliary() -> tuple[nn.Module, Loss]:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        self.aux = self.fc(inputs).square().mean()
        return self.head(inputs)

    model = _two(run, aux=torch.zeros(()))
    return model, lambda p, t: squared(p, t) + model.aux


class Collector:
    def keep(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.output = output


def _collected() -> tuple[nn.Module, Loss]:
    model, collector = nn.Linear(3, 2), Collector()
    model.register_forward_hook(collector.keep)
    return model, lambda p, t: squared(p, t) + collector.output.square().mean()


def _weakly_linked() -> nn.Module:
    def leave(child: Apply, inputs: Tensor) -> None:
        child.parent().last = child.fc(inputs)

    def run(self: Apply, inputs: Tensor) -> Tensor:
        self.child(inputs)
        return self.head(self.last)

    parent = Apply(run, head=nn.Linear(3, 2), last=None)
    parent.child = Apply(leave, fc=nn.Linear(3, 3), parent=weakref.ref(parent))
    return parent


class Scale(nn.Parameter):
    pass


def _identified() -> tuple[nn.Module, Loss]:
    """Three places where a parameter is looked for by identity: a list, a dictionary and a set."""

    def run(self: Apply, inputs: Tensor) -> Tensor:
        outputs = self.fc(inputs) * self.rates.get(self.fc.weight, 1)
        if isinstance(self.scale, Scale) and self.scale is self.kept[0]:
            outputs = outputs * self.scale
        return outputs

    scale = Scale(torch.randn(2, dtype=torch.float64))
    model = Apply(run, fc=nn.Linear(3, 2).double(), scale=scale, kept=[scale])
    model.rates = {model.fc.weight: 0.5}
    decayed = {scale}

    def loss_fn(predictions: Tensor, targets: Tensor) -> Tensor:
        loss = squared(predictions, targets)
        for parameter in model.parameters():
            if parameter in decayed:
                loss = loss + parameter.square().sum()
        return loss

    return model, loss_fn


def _viewed() -> nn.Module:
    # In float64, since a view would not follow `.double()`.
    model = Apply(lambda m, x: x @ m.top.T + m.fc(x), fc=nn.Linear(3, 2).double())
    model.top = model.fc.weight[:1]
    return model


class Unmeasured(tuple):
    def __len__(self) -> int:
        raise NotImplementedError


@torch.library.custom_op("wild::sine", mutates_args=())
def _sine(inputs: Tensor) -> Tensor:
    return inputs.sin()


_sine.register_autograd(
    lambda ctx, grads: grads * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Once(Product):
    """Cannot be differentiated twice."""

    @staticmethod
    def backward(ctx, grads: Tensor) -> tuple[Tensor, Tensor]:
        of_inputs, of_weight = Product.backward(ctx, grads)
        return of_inputs.detach(), of_weight.detach()


def _force(self: Apply, inputs: Tensor) -> Tensor:
    positions = inputs.detach().requires_grad_()
    energy = self.fc(positions).tanh().sum()
    return torch.autograd.grad(energy, positions, create_graph=True)[0]


def _penalised(self: Apply, inputs: Tensor) -> Tensor:
    hidden = self.fc(inputs).tanh()
    (slope,) = torch.autograd.grad(hidden.sum(), self.fc.weight, create_graph=True)
    return hidden * slope.norm()


def _straight_through(self: Apply, inputs: Tensor) -> Tensor:
    hidden = self.fc(inputs)
    rounded = hidden.detach().round()
    if hidden.requires_grad:
        rounded = rounded + (hidden - hidden.detach())  # the gradient passes the rounding
    return self.head(rounded)


def _seeded(self: Apply, inputs: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return self.fc(inputs) + torch.randn(2)


def _solved(self: Apply, inputs: Tensor) -> Tensor:
    # As many rows as there are samples.
    matrix = self.fc(inputs).view(-1, 4, 4) + 4 * torch.eye(4, dtype=inputs.dtype)
    return torch.linalg.solve(matrix, self.column)[..., 0]


def _adapted_table() -> nn.Module:
    def run(self: Apply, tokens: Tensor) -> Tensor:
        plain = self.table.weight
        words = F.embedding(tokens, plain + self.down @ self.up, padding_idx=1)
        return (words + F.embedding(tokens, plain * 2, scale_grad_by_freq=True)).flatten(1)

    # A product of rank 2, as LoRA adds one.
    down, up = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 4))
    return Apply(run, table=nn.Embedding(6, 4), down=down, up=up)


def _grouped_channels_last() -> nn.Module:
    first = nn.Conv2d(2, 4, 3, padding=1)
    second = nn.Conv2d(4, 4, 3, groups=2)
    model = nn.Sequential(first, second, nn.Flatten())
    return model.to(memory_format=torch.channels_last)


def _added(self: Apply, inputs: Tensor) -> Tensor:
    inputs += 1
    return self.fc(inputs)


def _gradient_clamped(self: Apply, inputs: Tensor) -> Tensor:
    hidden = self.fc(inputs).tanh()
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
    return self.head(hidden)


Build = Callable[[], nn.Module | tuple[nn.Module, Loss]]
ROWS: dict[str, Build] = {
    "kept deep inside": lambda: _one(_nested, cache={"inner": {"calls": []}, "more": ()}),
    "kept in an object": lambda: _one(_object, cache=Memory()),
    "kept in a tensor": lambda: _one(lambda m, x: m.fc(x * m.cache.mul_(1.5)), cache=torch.rand(3)),
    "hooks on first use": lambda: _two(_hidden_states, cache=[], seen=[]),
    "wrapped inside": _wrapped,
    "compiled": lambda: torch.compile(nn.Linear(3, 2), backend="eager"),
    "parameters in a list": _listed,
    "parameter in a closure": _in_a_closure,
    "checkpoint": lambda: _checkpointed(False),
    "checkpoint reentrant": lambda: _checkpointed(True),
    "scripted": _scripted,
    "data parallel": lambda: nn.DataParallel(nn.Linear(3, 2)),
    "item": lambda: _one(_item),
    "sparse buffer": lambda: _one(
        lambda m, x: m.fc(torch.sparse.mm(m.graph, x.T).T),
        graph=nn.Buffer(torch.eye(3).to_sparse()),
    ),
    "cdist": lambda: Apply(lambda m, x: torch.cdist(m.fc(x), m.w), fc=nn.Linear(3, 3), w=_weight()),
    "as_strided": lambda: Apply(lambda m, x: x @ m.w.as_strided((3, 2), (1, 1)), w=_weight()),
    "solve columns": lambda: Apply(
        _solved, fc=nn.Linear(3, 16), column=nn.Parameter(torch.randn(4, 1))
    ),
    "index_fill": lambda: Apply(
        lambda m, x: x @ m.w.index_fill(1, torch.tensor([0, -1]), x.sum()).T, w=_weight()
    ),
    "custom operator": lambda: _two(lambda m, x: m.head(_sine(m.fc(x)))),
    "backward only once": lambda: _two(lambda m, x: m.head(Once.apply(m.fc(x), m.fc.weight).sin())),
    "force": lambda: Apply(_force, fc=nn.Linear(3, 3)),
    "penalty of a slope": lambda: _one(_penalised),
    "straight through": lambda: _two(_straight_through),
    "condition": lambda: _two(
        lambda m, x: torch.cond(x.sum() > 0, lambda x: m.head(m.fc(x)), m.head, (x,))
    ),
    "seed of its own": lambda: _one(_seeded),
    "tuple without a length": lambda: _one(lambda m, x: m.fc(x), kept=[Unmeasured((1, 2))]),
}
# What holds together in plain PyTorch: another module, a loss or a hook looks at what ran.
LINKED: dict[str, Build] = {
    "loss of what the forward kept": _auxiliary,
    "loss of what a method kept": _collected,
    "weak reference to the parent": _weakly_linked,
    "identity of a parameter": _identified,
    "a view of a parameter": _viewed,
    "what cannot be copied": lambda: _one(lambda m, x: m.fc(x), lock=threading.Lock()),
    "data added to": lambda: _one(_added),
    "gradient clamped": lambda: _two(_gradient_clamped),
}
WORDS: dict[str, Build] = {
    "key padding mask": _padded,
    "table with a product added": _adapted_table,
    "words by their frequency": lambda: nn.Sequential(
        nn.Embedding(6, 4, padding_idx=1, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(12, 2)
    ),
}
IMAGES: dict[str, Build] = {
    "stem batch norm": lambda: _normalized(_stem),
    "norm, then writes": lambda: _normalized(_norm_then_added),
    "tokens as images": lambda: _normalized(_tokens_as_images),
    "grouped, channels last": _grouped_channels_last,
}
# What builds a model, and the shape of one sample.
MODELS: dict[str, tuple[Build, tuple[int, ...]]] = {}
for _name, _build in (ROWS | LINKED | WORDS).items():
    MODELS[_name] = _build, (3,)
for _name, _build in IMAGES.items():
    MODELS[_name] = _build, (2, 4, 4)


def make(name: str, batch_size: int = 4) -> Case:
    build, shape = MODELS[name]
    return made(build, shape, batch_size, name, words=name in WORDS)
