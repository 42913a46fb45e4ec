"""Habits of real models, small: what they keep, wrap, write, cache and cannot batch."""

import threading
import warnings
import weakref
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, cond, nn
from torch.utils.checkpoint import checkpoint

from tests.support.zoo import Apply, Case, made, squared, with_statistics


def _weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(2, 3))


def _one(run: Callable[..., Tensor], **more: object) -> nn.Module:
    return Apply(run, fc=nn.Linear(3, 2), **more)


def _two(run: Callable[..., Tensor], **more: object) -> nn.Module:
    return Apply(run, fc=nn.Linear(3, 3), head=nn.Linear(3, 2), **more)


# Normalisation, and then its result read in another order.


def _channels_last(self: Apply, inputs: Tensor) -> Tensor:
    """Maps whose channels lie next to each other in memory, as on a fast path of convolutions."""
    maps = self.conv(inputs).contiguous(memory_format=torch.channels_last)
    return (self.norm(maps).flatten(1) * self.scale.repeat(4)).sin()


def _tokens_as_images(self: Apply, inputs: Tensor) -> Tensor:
    """Tokens that lie one after the other are normalised as an image."""
    tokens = (self.conv(inputs).flatten(2).transpose(1, 2) * self.scale).contiguous()
    return self.norm(tokens.transpose(1, 2).unflatten(2, (2, 2))).flatten(1)


def _norm_then_added(self: Apply, inputs: Tensor) -> Tensor:
    maps = self.norm(self.conv(inputs))
    maps += self.scale.view(-1, 1, 1)
    maps.mul_(0.5)[:, 0] *= 3
    return maps.flatten(2).transpose(1, 2).reshape(len(inputs), -1).sin_()


def _stem(self: Apply, inputs: Tensor) -> Tensor:
    """The patch stem of hybrid vision transformers."""
    return (self.norm(self.conv(inputs)).flatten(2).transpose(1, 2) * self.scale).sin().flatten(1)


def _normalised(run: Callable[..., Tensor]) -> nn.Module:
    own = {"norm": with_statistics(nn.BatchNorm2d(4)), "scale": nn.Parameter(torch.randn(4))}
    return Apply(run, conv=nn.Conv2d(2, 4, 3), **own)


# State that a forward keeps on `self`, in place.


def _nested(self: Apply, inputs: Tensor) -> Tensor:
    self.cache["inner"]["calls"].append(1)
    return self.fc(inputs) * len(self.cache["inner"]["calls"])


class Memory:
    """A plain object that a model keeps its state in."""

    def __init__(self) -> None:
        self.steps, self.scale = [], 1.0


class Slotted:
    """The same, without a dictionary of attributes."""

    __slots__ = ("scale", "steps")
    __init__ = Memory.__init__


def _object(self: Apply, inputs: Tensor) -> Tensor:
    self.cache.steps.append(1)
    self.cache.scale *= 1.5
    return self.fc(inputs) * self.cache.scale * len(self.cache.steps)


def _hidden_states(self: Apply, inputs: Tensor) -> Tensor:
    if not self.cache:
        self.fc.register_forward_hook(lambda m, i, o: self.seen.append(o.tanh()))
        self.cache.append("registered")
    self.fc(inputs)
    return self.head(sum(self.seen))


def _new_layer_scale(self: Apply, inputs: Tensor) -> Tensor:
    self.fc.scale = getattr(self.fc, "scale", 1.0) * 1.5
    return self.fc(inputs) * self.fc.scale


def _compiled(run: Callable) -> Callable:
    return torch.compile(run, backend="eager")


def _wrapped(wrap: Callable[[Callable], Callable]) -> nn.Module:
    """Wrap a forward on the instance."""
    layer = nn.Linear(3, 3)
    layer.forward = wrap(layer.forward)
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 2))


# A parameter that also stands in a list, or in an object.


def _listed() -> nn.Module:
    model = Apply(lambda m, x: m.fc(x) @ m.weights[0] + m.weights[1], fc=nn.Linear(3, 3))
    model.extra, model.shift = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))
    model.weights = [model.extra, model.shift]
    return model


class Product(torch.autograd.Function):
    """A product that torch transforms."""

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


class OldProduct(torch.autograd.Function):
    """The same, as it was written before `setup_context`."""

    @staticmethod
    def forward(ctx, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight.T

    backward = Product.backward


def _closed_over(function: Callable[..., Tensor]) -> nn.Module:
    """Give a function a weight that no module hands over."""
    fc = nn.Linear(3, 2)
    weight = fc.weight
    return Apply(lambda m, x: m.fc(x) + function(x, weight).sin(), fc=fc)


def _in_a_closure() -> nn.Module:
    fc = nn.Linear(3, 2)
    weight, bias = fc.parameters()
    twice = lambda x: F.linear(x, torch.stack([weight, weight]).sum(0), bias=bias)  # noqa: E731
    return Apply(lambda m, x: m.fc(x) + twice(x), fc=fc)


def _halved(frozen: bool = False) -> nn.Module:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        self.fc.weight.data.mul_(0.5)
        return self.head(self.fc(inputs))

    model = _two(run)
    model.fc.weight.requires_grad_(not frozen)
    return model


def flipping(self: Apply, inputs: Tensor) -> Tensor:
    """Change mode and state, and then fail."""
    self.fc.training = False
    self.seen.append(1)
    raise KeyError("the model fails")


# What autograd does, and transforms may not.


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


def _recurrence(self: Apply, inputs: Tensor) -> Tensor:
    """A state that each step writes a row of."""
    states = torch.zeros(4, 3, dtype=inputs.dtype)
    for step in range(1, 4):
        states[step] = torch.tanh(self.fc(states[step - 1].clone() + inputs[0]))
    return states.flatten()[None]


def _solve(self: Apply, inputs: Tensor) -> Tensor:
    matrix = self.fc.weight @ self.fc.weight.T + torch.eye(3, dtype=inputs.dtype)
    return torch.linalg.solve(matrix, self.fc(inputs)[0])[None]


def _sparse() -> nn.Module:
    model = Apply(lambda m, x: m.fc(torch.sparse.mm(m.graph, x.T).T), fc=nn.Linear(3, 2))
    model.register_buffer("graph", torch.eye(3).to_sparse())
    return model


def _padded(looks: bool) -> nn.Module:
    """Make a language model with a mask of padding; it may look whether there is any at all."""

    def run(self: Apply, tokens: Tensor) -> Tensor:
        padding = (tokens == 0) & (torch.arange(3) > 0)
        padding = None if looks and not padding.any() else padding
        return self.head(self.encoder(self.words(tokens), src_key_padding_mask=padding)[:, 0])

    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
    with warnings.catch_warnings(action="ignore"):
        encoder = nn.TransformerEncoder(layer, 1)
    return Apply(run, words=nn.Embedding(6, 4), encoder=encoder, head=nn.Linear(4, 2))


# A loss, or another module, that looks at what the forward kept.

Loss = Callable[[Tensor, Tensor], Tensor]


def _auxiliary() -> tuple[nn.Module, Loss]:
    """Keep a part of the loss, as mixtures of experts do."""

    def run(self: Apply, inputs: Tensor) -> Tensor:
        self.aux = self.fc(inputs).square().mean()
        return self.head(inputs)

    model = _two(run, aux=torch.zeros(()))
    return model, lambda p, t: squared(p, t) + model.aux


class Collector:
    """What keeps the output of a layer for a loss, outside of the model."""

    def keep(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.output = output


def _collected() -> tuple[nn.Module, Loss]:
    model, collector = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), Collector()
    model[1].register_forward_hook(collector.keep)
    return model, lambda p, t: squared(p, t) + collector.output.square().mean()


def _weakly_linked() -> nn.Module:
    """A part leaves its result with the module that it stands in."""
    parent = Apply(lambda m, x: m.child(x) or m.head(m.last), head=nn.Linear(3, 2), last=None)
    leave = lambda m, x: setattr(m.parent(), "last", m.fc(x))  # noqa: E731
    parent.child = Apply(leave, fc=nn.Linear(3, 3), parent=weakref.ref(parent))
    return parent


# What a parameter is, besides its numbers.


class Scale(nn.Parameter):
    """A parameter of a class of its own, which a forward looks at."""


def typed() -> nn.Module:
    """Look at the class of a parameter."""
    model = Apply(lambda m, x: m.fc(x) * (m.scale if isinstance(m.scale, Scale) else 1))
    model.fc, model.scale = nn.Linear(3, 2).double(), Scale(torch.randn(2, dtype=torch.float64))
    return model


def _identified(scale: Callable[..., float]) -> nn.Module:
    """Look at which object a parameter is: `scale(model, weight)` says by how much it counts."""
    model = Apply(lambda m, x: m.fc(x) * scale(m, m.fc.weight), fc=nn.Linear(3, 2))
    model.kept, model.rates = [model.fc.weight], {model.fc.weight: 0.5}
    return model


def _penalised_by_a_set() -> tuple[nn.Module, Loss]:
    model = nn.Linear(3, 2)
    decay = {model.weight}
    penalty = lambda: sum(p.square().sum() for p in model.parameters() if p in decay)  # noqa: E731
    return model, lambda p, t: squared(p, t) + penalty()


def _read_by_a_hook() -> nn.Module:
    model = nn.Linear(3, 2)
    bias = model.bias
    model.register_forward_hook(lambda layer, inputs, outputs: outputs * bias)
    return model


def _viewed() -> nn.Module:
    """Keep a view of a weight beside it; in float64, since it would not follow `.double()`."""
    model = Apply(lambda m, x: x @ m.top.T + m.fc(x), fc=nn.Linear(3, 2).double())
    model.top = model.fc.weight[:1]
    return model


@torch.jit.script
def _scripted_product(inputs: Tensor, weight: Tensor) -> Tensor:
    return inputs @ weight.t()


def _closure_for_a_script() -> nn.Module:
    """Use a weight in its layer, too."""
    fc = nn.Linear(3, 2)
    weight = fc.weight
    product = _scripted_product
    return Apply(lambda m, x: m.fc(x) + product(x, weight) + product(x, weight=weight), fc=fc)


class Unmeasured(tuple):
    """A tuple without a length, as e3nn has them."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError


# What differentiates inside.


@torch.library.custom_op("wild::sine", mutates_args=())
def _sine(inputs: Tensor) -> Tensor:
    return inputs.sin()


_sine.register_autograd(
    lambda ctx, grads: grads * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Once(Product):
    """A product whose backward cannot be differentiated."""

    @staticmethod
    def backward(ctx, grads: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(each.detach() for each in Product.backward(ctx, grads))


class Reversible(torch.autograd.Function):
    """A residual layer that runs again in the backward, by a backward of its own."""

    @staticmethod
    def forward(ctx, inputs: Tensor, layer: nn.Module) -> Tensor:
        ctx.inputs, ctx.layer = inputs.detach(), layer
        with torch.no_grad():
            return inputs + layer(inputs)

    @staticmethod
    def backward(ctx, grads: Tensor) -> tuple[Tensor, None]:
        inputs = ctx.inputs.clone().requires_grad_()
        with torch.enable_grad():
            ctx.layer(inputs).backward(grads)
        return grads + inputs.grad, None


def _reversible() -> nn.Module:
    """Put a reversible layer between two others."""
    layers = {name: nn.Linear(3, 3) for name in ("first", "fc", "head")}
    return Apply(lambda m, x: m.head(Reversible.apply(m.first(x), m.fc).sin()), **layers)


def _force(self: Apply, inputs: Tensor) -> Tensor:
    """Return the force of an energy, as networks of molecules do."""
    positions = inputs.detach().requires_grad_()
    energy = self.fc(positions).tanh().sum()
    return torch.autograd.grad(energy, positions, create_graph=True)[0]


def _penalised(self: Apply, inputs: Tensor) -> Tensor:
    hidden = self.fc(inputs).tanh()
    (slope,) = torch.autograd.grad(hidden.sum(), self.fc.weight, create_graph=True)
    return hidden * slope.norm()


def _straight_through(self: Apply, inputs: Tensor) -> Tensor:
    hidden = self.fc(inputs)
    past = hidden - hidden.detach() if hidden.requires_grad else 0
    return self.head(hidden.detach().round() + past)


def _seeded(self: Apply, inputs: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return self.fc(inputs) + torch.randn(2)


# What torch itself gets wrong under some transforms.


def _solved(solve: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """Solve an equation of as many rows as there are samples."""

    def run(self: Apply, inputs: Tensor) -> Tensor:
        matrix = self.fc(inputs).view(-1, 4, 4) + 4 * torch.eye(4, dtype=inputs.dtype)
        return solve(matrix, self.column)[..., 0]

    return Apply(run, fc=nn.Linear(3, 16), column=nn.Parameter(torch.randn(4, 1)))


def _adapted_table() -> nn.Module:
    """Read a table to which a product of low rank is added."""

    def run(self: Apply, tokens: Tensor) -> Tensor:
        plain = self.table.weight
        words = F.embedding(tokens, plain + self.down @ self.up, padding_idx=1)
        return (words + F.embedding(tokens, plain * 2, scale_grad_by_freq=True)).flatten(1)

    ranks = {"down": nn.Parameter(torch.randn(6, 2)), "up": nn.Parameter(torch.randn(2, 4))}
    return Apply(run, table=nn.Embedding(6, 4), **ranks)


def _grouped_channels_last() -> nn.Module:
    convolutions = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, groups=2)
    return nn.Sequential(*convolutions, nn.Flatten()).to(memory_format=torch.channels_last)


# Forwards that write into what they are given, or into gradients.


def _added(self: Apply, inputs: Tensor) -> Tensor:
    inputs += 1
    return self.fc(inputs) * (float(inputs.detach().mean() > -99) if self.reads else 1)


def _gradient_clamped(self: Apply, inputs: Tensor) -> Tensor:
    """Clamp a gradient, where there is one to come."""
    hidden = self.fc(inputs).tanh()
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
    return self.head(hidden)


Build = Callable[[], nn.Module | tuple[nn.Module, Loss]]
ROWS: dict[str, Build] = {
    "kept deep inside": lambda: _one(_nested, cache={"inner": {"calls": []}, "more": ()}),
    "kept in an object": lambda: _one(_object, cache=Memory()),
    "kept in slots": lambda: _one(_object, cache=Slotted()),
    "kept in a tensor": lambda: _one(lambda m, x: m.fc(x * m.cache.mul_(1.5)), cache=torch.rand(3)),
    "kept on a layer": lambda: _one(_new_layer_scale),
    "hooks on first use": lambda: _two(_hidden_states, cache=[], seen=[]),
    "wrapped inside": lambda: _wrapped(lambda forward: lambda x: forward(x)),
    "wrapped by compile": lambda: _wrapped(_compiled),
    "compiled": lambda: _compiled(nn.Linear(3, 2)),
    "parameters in a list": _listed,
    "parameter in a closure": _in_a_closure,
    "closure into a function": lambda: _closed_over(Product.apply),
    "closure into an old function": lambda: _closed_over(OldProduct.apply),
    "max norm": lambda: _one(
        lambda m, x: m.fc(x * m.table(torch.tensor([2]))), table=nn.Embedding(6, 3, max_norm=0.5)
    ),
    "weight halved": _halved,
    "frozen weight halved": lambda: _halved(frozen=True),
    "checkpoint": lambda: _checkpointed(False),
    "checkpoint reentrant": lambda: _checkpointed(True),
    "scripted": _scripted,
    "data parallel": lambda: nn.DataParallel(nn.Linear(3, 2)),
    "item": lambda: _one(_item),
    "recurrence in place": lambda: Apply(_recurrence, fc=nn.Linear(3, 3)),
    "prelu, outputs as many as samples": lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU()),
    "solve a vector": lambda: Apply(_solve, fc=nn.Linear(3, 3)),
    "sparse buffer": _sparse,
    "cdist": lambda: Apply(lambda m, x: torch.cdist(m.fc(x), m.w), fc=nn.Linear(3, 3), w=_weight()),
    "as_strided": lambda: Apply(lambda m, x: x @ m.w.as_strided((3, 2), (1, 1)), w=_weight()),
    "cdist, the largest of equals": lambda: Apply(
        lambda m, x: torch.cdist(x.sign() * m.s, m.w - m.w.detach(), p=torch.inf),
        s=nn.Parameter(torch.ones(3)),
        w=_weight(),
    ),
    "lu_solve": lambda: _solved(
        lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b[None])
    ),
    "solve columns": lambda: _solved(torch.linalg.solve),
    "index_fill": lambda: Apply(
        lambda m, x: x @ m.w.index_fill(1, torch.tensor([0, -1]), x.sum()).T, w=_weight()
    ),
    "custom operator": lambda: _two(lambda m, x: m.head(_sine(m.fc(x)))),
    "backward only once": lambda: _two(lambda m, x: m.head(Once.apply(m.fc(x), m.fc.weight).sin())),
    "old function of a number": lambda: Apply(
        lambda m, x: OldProduct.apply(x, m.w) * m.scale,
        w=_weight(),
        scale=nn.Parameter(torch.tensor(1.5)),
    ),
    "reversible": _reversible,
    "force": lambda: Apply(_force, fc=nn.Linear(3, 3)),
    "penalty of a slope": lambda: _one(_penalised),
    "straight through": lambda: _two(_straight_through),
    "condition": lambda: _two(
        lambda m, x: (
            torch.cond(x.sum() > 0, lambda x: m.head(m.fc(x)), m.head, (x,))
            + cond(x.sum() > 0, lambda x: m.head(x).sin(), m.head, (x,))
        )
    ),
    "seed of its own": lambda: _one(_seeded),
    "tuple without a length": lambda: _one(lambda m, x: m.fc(x), kept=[Unmeasured((1, 2))]),
}
# What holds together in plain PyTorch: another module, a loss or a hook looks at what ran.
LINKED: dict[str, Build] = {
    "loss of what the forward kept": _auxiliary,
    "loss of what a method kept": _collected,
    "weak reference to the parent": _weakly_linked,
    "a class of parameters": typed,
    "type of a parameter": lambda: _identified(lambda m, w: 0.5 + (type(w) is nn.Parameter)),
    "identity of a parameter": lambda: _identified(lambda m, w: 0.5 + (w is m.kept[0])),
    "parameter as a key": lambda: _identified(lambda m, w: m.rates.get(w, 1.0)),
    "penalty over a set": _penalised_by_a_set,
    "hook that reads a parameter": _read_by_a_hook,
    "a view of a parameter": _viewed,
    "scripted function of a closure": _closure_for_a_script,
    "select_scatter": lambda: Apply(
        lambda m, x: x @ torch.select_scatter(m.weight, m.row, 0, 1).T,
        weight=_weight(),
        row=nn.Parameter(torch.randn(3)),
    ),
    "what cannot be copied": lambda: _one(lambda m, x: m.fc(x), lock=threading.Lock()),
    "data added to": lambda: _one(_added, reads=False),
    "data added to, and read": lambda: _one(_added, reads=True),
    "gradient clamped": lambda: _two(_gradient_clamped),
}
WORDS: dict[str, Build] = {
    "padding looked for": lambda: _padded(looks=True),
    "key padding mask, eval": lambda: _padded(looks=False).eval(),
    "table with a product added": _adapted_table,
    "words by their frequency": lambda: nn.Sequential(
        nn.Embedding(6, 4, padding_idx=1, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(12, 2)
    ),
}
IMAGES: dict[str, Build] = {
    "stem batch norm": lambda: _normalised(_stem),
    "norm, then writes": lambda: _normalised(_norm_then_added),
    "channels last": lambda: _normalised(_channels_last),
    "tokens as images": lambda: _normalised(_tokens_as_images),
    "grouped, channels last": _grouped_channels_last,
}
GROUPS = [((3,), ROWS | LINKED | WORDS), ((2, 4, 4), IMAGES)]
MODELS = {name: (build, shape) for shape, group in GROUPS for name, build in group.items()}


def make(name: str, batch_size: int = 4) -> Case:
    """Build a case."""
    return made(*MODELS[name], batch_size, name, words=name in WORDS)
