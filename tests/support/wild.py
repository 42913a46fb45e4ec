"""Habits of real models, small: what they keep, wrap, write, cache and cannot batch."""

import functools
import threading
import time
import warnings
import weakref
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, cond, nn
from torch.utils.checkpoint import checkpoint

from tests.support.zoo import Apply, Case, squared, with_statistics


def _weight() -> nn.Parameter:
    return nn.Parameter(torch.randn(2, 3))


def _one(run: Callable[..., Tensor], **more: object) -> nn.Module:
    return Apply(run, fc=nn.Linear(3, 2), **more)


def _two(run: Callable[..., Tensor], **more: object) -> nn.Module:
    return Apply(run, fc=nn.Linear(3, 3), head=nn.Linear(3, 2), **more)


# Normalisation, and then its result read in another order.


def _stem(norm: nn.Module, dims: int = 2) -> nn.Module:
    """The patch stem of hybrid vision transformers."""

    def run(self: Apply, inputs: Tensor) -> Tensor:
        inputs = inputs if dims == 2 else inputs.unsqueeze(2).expand(-1, -1, 3, -1, -1)
        patches = self.norm(self.conv(inputs)).flatten(2).transpose(1, 2)
        return (patches * self.position).flatten(1)

    convolution = nn.Conv2d(2, 4, 3) if dims == 2 else nn.Conv3d(2, 4, (1, 3, 3))
    position = nn.Parameter(torch.randn(4 if dims == 2 else 12, 4))
    return Apply(run, conv=convolution, norm=with_statistics(norm), position=position)


def _stem_by_function() -> nn.Module:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        maps = F.batch_norm(self.conv(inputs), self.mean, self.var, self.scale, self.shift)
        return (maps.flatten(2).transpose(1, 2) * self.position).flatten(1)

    own = {"scale": torch.rand(4), "shift": torch.rand(4), "position": torch.randn(4, 4)}
    own = {name: nn.Parameter(each) for name, each in own.items()}
    model = Apply(run, conv=nn.Conv2d(2, 4, 3), **own)
    model.register_buffer("mean", torch.rand(4))
    model.register_buffer("var", torch.rand(4) + 0.5)
    return model


def _channels_last(norm: nn.Module) -> nn.Module:
    """Maps whose channels lie next to each other in memory, as on a fast path of convolutions."""

    def run(self: Apply, inputs: Tensor) -> Tensor:
        maps = self.conv(inputs.contiguous(memory_format=torch.channels_last))
        maps = self.norm(maps.contiguous(memory_format=torch.channels_last))
        return (maps.flatten(1) * self.scale).sin()

    scale = nn.Parameter(torch.rand(16))
    return Apply(run, conv=nn.Conv2d(2, 4, 3), norm=with_statistics(norm), scale=scale)


def _tokens_as_images() -> nn.Module:
    """Tokens that lie one after the other are normalised as an image."""

    def run(self: Apply, inputs: Tensor) -> Tensor:
        tokens = self.fc(inputs.flatten(2).transpose(1, 2))
        return self.norm(tokens.transpose(1, 2).unflatten(2, (4, 4))).flatten(1)

    return Apply(run, fc=nn.Linear(2, 3), norm=with_statistics(nn.BatchNorm2d(3)))


def _norm_then_relu(norm: nn.Module) -> nn.Module:
    """The block of residual networks, which saves memory by writing into the normalised maps."""
    body = nn.Conv2d(2, 4, 3), with_statistics(norm), nn.ReLU(inplace=True)
    return nn.Sequential(*body, nn.Conv2d(4, 2, 1), nn.Flatten())


def _norm_then_added() -> nn.Module:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        maps = self.norm(self.conv(inputs))
        maps += inputs[:, :, 1:-1, 1:-1]
        maps.mul_(0.5)[:, 0] *= 3
        return maps.flatten(2).transpose(1, 2).reshape(len(inputs), -1).sin_()

    return Apply(run, conv=nn.Conv2d(2, 2, 3), norm=with_statistics(nn.BatchNorm2d(2)))


# State that a forward keeps on `self`, in place.


def _dictionary_cache(self: Apply, inputs: Tensor) -> Tensor:
    if "product" not in self.cache:
        self.cache["product"] = self.fc.weight @ self.fc.weight.T
    return self.fc(inputs) @ self.cache["product"]


def _nested(self: Apply, inputs: Tensor) -> Tensor:
    self.cache["inner"]["calls"].append(1)
    return self.fc(inputs) * len(self.cache["inner"]["calls"])


class Memory:
    """A plain object that a model keeps its state in."""


def _object(self: Apply, inputs: Tensor) -> Tensor:
    self.cache.steps.append(1)
    self.cache.scale *= 1.5
    return self.fc(inputs) * self.cache.scale * len(self.cache.steps)


def _with_memory(run: Callable[..., Tensor]) -> nn.Module:
    model = Apply(run, fc=nn.Linear(3, 2), cache=Memory())
    vars(model.cache).update(steps=[], scale=1.0, weight=model.fc.weight, bias=model.fc.bias)
    return model


def _hidden_states(self: Apply, inputs: Tensor) -> Tensor:
    """Collect what a layer returns by a hook that the first call registers."""
    if not self.cache:
        self.fc.register_forward_hook(lambda m, i, o: self.seen.append(o.tanh()))
        self.cache.append("registered")
    self.fc(inputs)
    return self.head(sum(self.seen))


def _new_layer_scale(self: Apply, inputs: Tensor) -> Tensor:
    self.fc.scale = getattr(self.fc, "scale", 1.0) * 1.5
    return self.fc(inputs) * self.fc.scale


# A forward that was wrapped on the instance, and hooks that close over another layer.


def _timed(model: nn.Module) -> nn.Module:
    forward = model.forward

    @functools.wraps(forward)
    def run(*args: Tensor) -> Tensor:
        started = time.perf_counter()
        result = forward(*args)
        model.seconds = time.perf_counter() - started
        return result

    model.forward = run
    return model


_compiled = functools.partial(torch.compile, backend="eager")


def _compiled_forward(model: nn.Module) -> nn.Module:
    model.forward = _compiled(model.forward)
    return model


def _closing_hook() -> nn.Module:
    """A hook on one layer adds what another one makes of the same input."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[0].register_forward_hook(lambda m, inputs, output: output + model[2](inputs[0]))
    return model


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


def _closed_over_later() -> nn.Module:
    """Use the weight of the closure for some samples only."""
    fc = nn.Linear(3, 2)
    weight = fc.weight

    def run(self: Apply, inputs: Tensor) -> Tensor:
        outputs = self.fc(inputs)
        return outputs + OldProduct.apply(inputs, weight) if inputs.sum() > 0 else outputs

    return Apply(run, fc=fc)


def _checkpointed_closure() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    first, second = model[0], model[2]
    model.forward = lambda x: second(checkpoint(first, x.requires_grad_(), use_reentrant=True))
    return model


def _in_a_closure() -> nn.Module:
    fc = nn.Linear(3, 2)
    weight = fc.weight
    return Apply(lambda m, x: m.fc(x) + x @ torch.stack([weight, weight]).sum(0).T, fc=fc)


def _halved(self: Apply, inputs: Tensor) -> Tensor:
    self.fc.weight.data.mul_(0.5)
    return self.fc(inputs)


def _frozen_written() -> nn.Module:
    model = Apply(_halved, fc=nn.Linear(3, 2))
    model.fc.weight.requires_grad_(False)
    return model


def flipping(self: Apply, inputs: Tensor) -> Tensor:
    """Change mode, flags and a weight, and then fail."""
    self.fc.training = False
    with torch.no_grad():
        self.fc.weight.zero_()
    self.seen.append(1)
    raise KeyError("the model fails")


# What autograd does, and transforms may not.


def _checkpointed(reentrant: bool) -> nn.Module:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return self.head(checkpoint(self.fc, hidden, use_reentrant=reentrant).tanh())

    return Apply(run, first=nn.Linear(3, 3), fc=nn.Linear(3, 3), head=nn.Linear(3, 2))


def _scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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


def _observed() -> nn.Module:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    quantize = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
    return nn.Sequential(nn.Linear(3, 3), quantize, nn.Linear(3, 2))


class Padded(nn.Module):
    """A language model with a mask of padding; it may look whether there is any at all."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.looks, self.words, self.head = looks, nn.Embedding(6, 4), nn.Linear(4, 2)
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = (tokens == 0) & (torch.arange(3) > 0)
        if self.looks and not padding.any():
            padding = None
        return self.head(self.encoder(self.words(tokens), src_key_padding_mask=padding)[:, 0])


# A loss, or another module, that looks at what the forward kept.

Loss = Callable[[Tensor, Tensor], Tensor]


def _auxiliary() -> tuple[nn.Module, Loss]:
    """Keep a part of the loss, as mixtures of experts do."""

    def run(self: Apply, inputs: Tensor) -> Tensor:
        hidden = self.fc(inputs).tanh()
        self.aux = hidden.square().mean()
        return self.head(hidden)

    model = _two(run, aux=torch.zeros(()))
    return model, lambda p, t: squared(p, t) + model.aux


def _list_of_losses() -> tuple[nn.Module, Loss]:
    """Keep parts of the loss, as variational networks do."""
    model = _two(lambda m, x: m.losses.append(m.fc(x).square().sum()) or m.head(m.fc(x)), losses=[])
    return model, lambda p, t: squared(p, t) + sum(model.losses)


class Collector:
    """What keeps the output of a layer for a loss, outside of the model."""

    def keep(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Be a hook."""
        self.output = output


def _collected() -> tuple[nn.Module, Loss]:
    model, collector = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), Collector()
    model[1].register_forward_hook(collector.keep)
    return model, lambda p, t: squared(p, t) + collector.output.square().mean()


def _weakly_linked() -> nn.Module:
    """A part leaves its result with the module that it stands in."""
    parent = Apply(lambda m, x: m.child(x) or m.head(m.last), head=nn.Linear(3, 2), last=None)
    parent.child = Apply(
        lambda m, x: setattr(m.parent(), "last", m.fc(x)),
        fc=nn.Linear(3, 3),
        parent=weakref.ref(parent),
    )
    return parent


# What a parameter is, besides its numbers.


class Scale(nn.Parameter):
    """A parameter of a class of its own, which a forward looks at."""


def typed() -> nn.Module:
    """Look at the class of a parameter."""
    model = Apply(lambda m, x: m.fc(x) * (m.scale if isinstance(m.scale, Scale) else 1))
    model.fc, model.scale = nn.Linear(3, 2).double(), Scale(torch.randn(2, dtype=torch.float64))
    return model


def _viewed() -> nn.Module:
    """Keep a view of a weight beside it; in float64, since it would not follow `.double()`."""
    model = Apply(lambda m, x: x @ m.top.T + m.fc(x), fc=nn.Linear(3, 2).double())
    model.top = model.fc.weight[:1]
    return model


@torch.jit.script
def _scripted_product(inputs: Tensor, weight: Tensor) -> Tensor:
    return inputs @ weight.t()


def _listed_for_a_script() -> nn.Module:
    model = Apply(lambda m, x: _scripted_product(x, m.weights[0]), weight=_weight())
    model.weights = [model.weight]
    return model


def _closure_for_a_script() -> nn.Module:
    """Use a weight in its layer, too."""
    fc = nn.Linear(3, 2)
    weight = fc.weight
    return Apply(lambda m, x: m.fc(x) + _scripted_product(x, weight=weight), fc=fc)


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


class Once(torch.autograd.Function):
    """An exponential whose backward cannot be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor) -> Tensor:
        return inputs.exp()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grads: Tensor) -> Tensor:
        return (grads * ctx.saved_tensors[0]).detach()


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
    """Round, with a gradient past it where one is to come."""
    hidden = self.fc(inputs)
    past = hidden - hidden.detach() if hidden.requires_grad else 0
    return self.head(hidden.detach().round() + past)


def _seeded(self: Apply, inputs: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return self.fc(inputs) + torch.randn(2)


# What torch itself gets wrong under some transforms.


def _lu_solve(self: Apply, inputs: Tensor) -> Tensor:
    """Solve an equation of as many rows as there are samples."""
    matrix = self.fc(inputs).view(-1, 4, 4) + 4 * torch.eye(4, dtype=inputs.dtype)
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(matrix), self.column[None])[..., 0]


def _solve_columns(self: Apply, inputs: Tensor) -> Tensor:
    matrix = self.fc(inputs).view(-1, 4, 4) + 4 * torch.eye(4, dtype=inputs.dtype)
    return torch.linalg.solve(matrix, self.column)[..., 0]


def _adapted(self: Apply, tokens: Tensor) -> Tensor:
    """Read a table to which a product of low rank is added."""
    table = self.table.weight + self.down @ self.up
    words = F.embedding(tokens, table, padding_idx=1)
    return (words + F.embedding(tokens, self.table.weight * 2, scale_grad_by_freq=True)).flatten(1)


def _adapted_table() -> nn.Module:
    ranks = {"down": nn.Parameter(torch.randn(6, 2)), "up": nn.Parameter(torch.randn(2, 4))}
    return Apply(_adapted, table=nn.Embedding(6, 4), **ranks)


def _frequent() -> nn.Module:
    table = nn.Embedding(6, 4, padding_idx=1, scale_grad_by_freq=True)
    return nn.Sequential(table, nn.Flatten(), nn.Linear(12, 2))


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
    "kept in a dictionary": lambda: Apply(_dictionary_cache, fc=nn.Linear(3, 3), cache={}),
    "kept in a list": lambda: _one(
        lambda m, x: m.cache.append(m.fc(x).tanh()) or sum(m.cache), cache=[]
    ),
    "kept deep inside": lambda: _one(_nested, cache={"inner": {"calls": []}, "more": ()}),
    "kept in an object": lambda: _with_memory(_object),
    "kept in a tensor": lambda: _one(lambda m, x: m.fc(x * m.cache.mul_(1.5)), cache=torch.rand(3)),
    "kept on a layer": lambda: _one(_new_layer_scale),
    "hooks on first use": lambda: _two(_hidden_states, cache=[], seen=[]),
    "wrapped inside": lambda: nn.Sequential(_timed(nn.Linear(3, 3)), nn.Tanh(), nn.Linear(3, 2)),
    "wrapped by compile": lambda: _compiled_forward(nn.Linear(3, 2)),
    "hook over another layer": _closing_hook,
    "compiled": lambda: _compiled(nn.Linear(3, 2)),
    "parameters in a list": _listed,
    "parameters in an object": lambda: _with_memory(
        lambda m, x: F.linear(x, m.cache.weight, bias=m.cache.bias)
    ),
    "parameter in a closure": _in_a_closure,
    "closure into a function": lambda: _closed_over(Product.apply),
    "closure into an old function": lambda: _closed_over(OldProduct.apply),
    "closure into a function, later": _closed_over_later,
    "closure into a checkpoint": _checkpointed_closure,
    "max norm": lambda: _one(
        lambda m, x: m.fc(x * m.table(torch.tensor([2]))), table=nn.Embedding(6, 3, max_norm=0.5)
    ),
    "weight halved": lambda: _one(_halved),
    "frozen weight halved": _frozen_written,
    "checkpoint": lambda: _checkpointed(False),
    "checkpoint reentrant": lambda: _checkpointed(True),
    "scripted": _scripted,
    "data parallel": lambda: nn.DataParallel(nn.Linear(3, 2)),
    "item": lambda: _one(_item),
    "recurrence in place": lambda: Apply(_recurrence, fc=nn.Linear(3, 3)),
    "prelu, outputs as many as samples": lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU()),
    "solve a vector": lambda: Apply(_solve, fc=nn.Linear(3, 3)),
    "sparse buffer": _sparse,
    "old function": lambda: Apply(lambda m, x: OldProduct.apply(x.sin(), m.w), w=_weight()),
    "quantisation observer": _observed,
    "cdist": lambda: Apply(lambda m, x: torch.cdist(m.fc(x), m.w), fc=nn.Linear(3, 3), w=_weight()),
    "cdist, the largest of equals": lambda: Apply(
        lambda m, x: torch.cdist(x.sign() * m.s, m.w - m.w.detach(), p=torch.inf),
        s=nn.Parameter(torch.ones(3)),
        w=_weight(),
    ),
    "lu_solve": lambda: Apply(
        _lu_solve, fc=nn.Linear(3, 16), column=nn.Parameter(torch.randn(4, 1))
    ),
    "solve columns": lambda: Apply(
        _solve_columns, fc=nn.Linear(3, 16), column=nn.Parameter(torch.randn(4, 1))
    ),
    "index_fill": lambda: Apply(
        lambda m, x: x @ m.w.index_fill(1, torch.tensor([0, -1]), x.sum()).T, w=_weight()
    ),
    "custom operator": lambda: _two(lambda m, x: m.head(_sine(m.fc(x)))),
    "backward only once": lambda: _two(lambda m, x: m.head(Once.apply(m.fc(x)))),
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
    "loss of a list that the forward filled": _list_of_losses,
    "loss of what a method kept": _collected,
    "weak reference to the parent": _weakly_linked,
    "a class of parameters": typed,
    "a view of a parameter": _viewed,
    "scripted function of a list": _listed_for_a_script,
    "scripted function of a closure": _closure_for_a_script,
    "select_scatter": lambda: Apply(
        lambda m, x: x @ torch.select_scatter(m.weight, m.row, 0, 1).T,
        weight=_weight(),
        row=nn.Parameter(torch.randn(3)),
    ),
    "what cannot be copied": lambda: _one(lambda m, x: m.fc(x), lock=threading.Lock()),
    "data in place": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)),
    "data added to": lambda: _one(_added, reads=False),
    "data added to, and read": lambda: _one(_added, reads=True),
    "gradient clamped": lambda: _two(_gradient_clamped),
}
WORDS: dict[str, Build] = {
    "padding looked for": lambda: Padded(looks=True),
    "key padding mask, eval": lambda: Padded(looks=False).eval(),
    "table with a product added": _adapted_table,
    "words by their frequency": _frequent,
}
IMAGES: dict[str, Build] = {
    "stem batch norm": lambda: _stem(nn.BatchNorm2d(4)),
    "stem batch norm 3d": lambda: _stem(nn.BatchNorm3d(4), 3),
    "stem instance norm": lambda: _stem(nn.InstanceNorm2d(4, affine=True)),
    "stem instance norm tracking": lambda: _stem(
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    ),
    "stem by function": _stem_by_function,
    "norm, then relu in place": lambda: _norm_then_relu(nn.BatchNorm2d(4)),
    "instance norm, then relu in place": lambda: _norm_then_relu(nn.InstanceNorm2d(4, affine=True)),
    "norm, then writes": _norm_then_added,
    "channels last": lambda: _channels_last(nn.BatchNorm2d(4)),
    "channels last, group norm": lambda: _channels_last(nn.GroupNorm(2, 4)),
    "tokens as images": _tokens_as_images,
    "grouped, channels last": _grouped_channels_last,
}
GROUPS = [((3,), ROWS), ((3,), LINKED), ((3,), WORDS), ((2, 4, 4), IMAGES)]
MODELS = {name: (build, shape) for shape, group in GROUPS for name, build in group.items()}


def make(name: str, batch_size: int = 4) -> Case:
    """Build a case in float64 from its own seed, so that two calls give equal models."""
    build, shape = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(sum(map(ord, name)))
        (model, loss_fn), (other, _) = (_with_a_loss(build()) for _ in "12")
        data = torch.randn(batch_size, *shape, dtype=torch.float64)
        if name in WORDS:
            data = torch.randint(6, (batch_size, *shape))
        with torch.compiler.set_stance("force_eager"):
            output = other(data[:1].clone())  # some change when they run, or what they are given
        targets = torch.randn(batch_size, *output.shape[1:], dtype=torch.float64)
        return Case(model, data, targets, loss_fn)


def _with_a_loss(built: nn.Module | tuple[nn.Module, Loss]) -> tuple[nn.Module, Loss]:
    model, loss_fn = built if isinstance(built, tuple) else (built, squared)
    return _in_double(model), loss_fn


def _in_double(model: nn.Module) -> nn.Module:
    """Convert plain tensors too, in place, so that what a list holds stays a parameter."""
    model.double()
    for module in model.modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                setattr(module, key, value.double())
    return model
