"""Models drawn at will, of what real models are composed of."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.support.zoo import Apply, Case, squared, with_statistics


def case_of(model: nn.Module, shape: tuple[int, ...], batch_size: int, dtype: torch.dtype) -> Case:
    data = torch.randn(batch_size, *shape, dtype=dtype)
    with torch.no_grad():
        outputs = model.to(dtype)(torch.zeros(1, *shape, dtype=dtype))
    targets = torch.randn(batch_size, *outputs.shape[1:], dtype=dtype)
    return Case(model, data, targets, squared)


# Blocks map (B, T, D) to (B, T, D), T tokens of D numbers, so that any follows any.
TOKENS, WIDTH = 4, 4


def _one_of(draw: st.DrawFn, values: Any) -> Any:
    return draw(st.sampled_from([*values]))


def _swapped(layer: nn.Module) -> nn.Module:
    return Apply(lambda m, x: m.layer(x.transpose(1, 2)).transpose(1, 2), layer=layer)


# Of tokens, or of channels: then they are read in another order.
NORMS: list[Callable[[], nn.Module]] = [
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    lambda: nn.RMSNorm(WIDTH),
    lambda: _swapped(nn.GroupNorm(2, WIDTH)),
    lambda: _swapped(with_statistics(nn.BatchNorm1d(WIDTH))),
    lambda: _swapped(nn.InstanceNorm1d(WIDTH, affine=True)),
]


def _convolution(draw: st.DrawFn) -> nn.Module:
    size = _one_of(draw, [1, 3])
    groups = _one_of(draw, [1, 2, 4])
    return _swapped(nn.Conv1d(WIDTH, WIDTH, size, padding=size // 2, groups=groups))


def _linear(draw: st.DrawFn) -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH, bias=draw(st.booleans()))
    activation = _one_of(draw, [nn.Tanh, nn.GELU, nn.SiLU, nn.Softplus, nn.PReLU])
    return nn.Sequential(layer, activation())


def _norm(draw: st.DrawFn) -> nn.Module:
    return _one_of(draw, NORMS)()


def _attention(draw: st.DrawFn) -> nn.Module:
    layer = nn.MultiheadAttention(WIDTH, _one_of(draw, [1, 2]), batch_first=True)
    return Apply(lambda m, x: m.layer(x, x, x, need_weights=False)[0], layer=layer)


def _recurrence(draw: st.DrawFn) -> nn.Module:
    kind = _one_of(draw, [nn.RNN, nn.GRU, nn.LSTM])
    layer = kind(WIDTH, WIDTH, draw(st.integers(1, 2)), batch_first=True)
    return Apply(lambda m, x: m.layer(x)[0], layer=layer)


def _halves_exchanged(_: Apply, inputs: Tensor) -> Tensor:
    first, second = inputs.chunk(2, dim=2)
    return torch.cat([second.sin(), first.sin()], dim=2)


# A weight over the tokens, as MLP mixers have, by an operation that no layer is made of; and views
# and writes that move no number to another sample.
OPERATIONS: list[Callable[[Apply, Tensor], Tensor]] = [
    lambda m, x: torch.einsum("st,btd->bsd", m.weight, x),
    lambda m, x: m.weight @ x,
    lambda m, x: x * m.weight[0] + m.weight[1].view(1, 1, -1),
    lambda m, x: x.flip(1).roll(1, dims=2).transpose(1, 2),
    lambda m, x: torch.cat([x[:, ::2], x[:, 1::2]], dim=1),
    lambda m, x: x.clone().mul_(0.5).add_(1),
    _halves_exchanged,
]


def _operation(draw: st.DrawFn) -> nn.Module:
    weight = nn.Parameter(torch.randn(TOKENS, TOKENS))
    return Apply(_one_of(draw, OPERATIONS), weight=weight)


BLOCKS: list[Callable[[st.DrawFn], nn.Module]] = [
    _linear,
    _norm,
    _convolution,
    _attention,
    _recurrence,
    _operation,
]


def _block(draw: st.DrawFn, kind: int) -> nn.Module:
    """Draw a block; of the six kinds, one adds to its input and one is a gate of another."""
    one = _one_of(draw, BLOCKS)(draw)
    other = _one_of(draw, BLOCKS)(draw)
    if kind == 1:
        return Apply(lambda m, x: x + m.one(x), one=one)
    if kind == 2:
        return Apply(lambda m, x: m.one(x).sigmoid() * m.other(x), one=one, other=other)
    return one


@st.composite
def architectures(draw: st.DrawFn) -> Case:
    """Draw a stem, one to four blocks, a head, which parameters are frozen, and a batch."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    stem = nn.Identity()
    data = torch.randn(6, TOKENS, WIDTH, dtype=torch.float64)
    if draw(st.booleans()):  # words, whose table may be used again at the end
        stem = nn.Embedding(5, WIDTH, _one_of(draw, [None, 0]))
        data = torch.randint(5, (6, TOKENS))
    blocks: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.integers(0, 5))
        if kind == 0 and blocks:
            blocks.append(_one_of(draw, blocks))  # one part, used twice
        else:
            blocks.append(_block(draw, kind))
    head = _one_of(draw, ["pooled", "flat", "tied", "none"])
    body = nn.Sequential(stem, *blocks)
    if head == "tied" and isinstance(stem, nn.Embedding):
        model = Apply(lambda m, x: F.linear(m.body(x)[:, -1], m.body[0].weight), body=body)
    elif head == "pooled":
        model = Apply(lambda m, x: m.out(m.body(x).mean(1)), body=body, out=nn.Linear(WIDTH, 2))
    else:
        model = nn.Sequential(body, nn.Flatten())
        if head == "flat":
            model.append(nn.Linear(TOKENS * WIDTH, 2))
    model.double()
    for parameter in model.parameters():
        parameter.requires_grad_(draw(st.integers(0, 7)) > 0)
    data = data[: draw(st.integers(1, 5))]
    with torch.no_grad():
        targets = torch.randn_like(model(data))
    return Case(model, data, targets, squared)
