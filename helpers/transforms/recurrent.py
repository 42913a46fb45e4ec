"""Recurrent layers under transforms: as a few calls for all steps, and one recurrence.

On a CPU in float32 `torch.lstm` is one fused operation, for which `vmap` has no rule: it runs the
layer for one sample after the other. With weights of their own for the samples, no recurrent layer
of torch can be batched at all. Here the weights are used in linear calls over all steps, which
`vmap` batches and `helpers.layers` knows, and the recurrence is a function with a rule of its own.

The states `h` are computed first, as constants. With them, the gates of all steps are
`linear(x, w_ih) + linear(h before, w_hh)`, and `_Chain` leads back from the states to these gates,
through all later steps. So what arrives at the two linear calls is the whole gradient of a step,
and the gradient of a weight is what a linear layer makes of it.

In this module a sequence is `(T, K, N, features)` and a state `(K, N, features)`: N states for
each of K weights `(K, out, in)`. A batch of samples joins N where it shares a weight, and K where
each sample has its own.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from helpers.transforms import cells

Function = Callable[..., Any]


def unrolling(function: Function, model: nn.Module) -> Function:
    """Let a function of a model run recurrent layers as this module does, if there are any."""
    if not any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in model.modules()):
        return function

    def run(*args: Any) -> Any:
        with _Unrolled():
            return function(*args)

    return run


class _Unrolled(TorchFunctionMode):
    """Take the place of torch's recurrent layers and cells."""

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        if func in _LAYERS or func in _CELLS:
            # A packed sequence has its list of weights there; autocast has dtypes of its own.
            layer = func in _LAYERS and isinstance(args[3], bool) and args[0].numel()
            if (layer or func in _CELLS) and not torch.is_autocast_enabled(args[0].device.type):
                return _layers(_LAYERS[func], *args) if layer else _cell(_CELLS[func], *args)
        return func(*args, **(kwargs or {}))


_LAYERS = {
    torch.lstm: cells.Lstm,
    torch.gru: cells.Gru,
    torch.rnn_tanh: cells.Tanh,
    torch.rnn_relu: cells.Relu,
}
_CELLS = {
    torch.lstm_cell: cells.Lstm,
    torch.gru_cell: cells.Gru,
    torch.rnn_tanh_cell: cells.Tanh,
    torch.rnn_relu_cell: cells.Relu,
}


def _layers(
    kind: type[cells.Cell],
    inputs: Tensor,
    start: Any,
    weights: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Compute what torch's function of the same arguments does."""
    inputs = inputs.transpose(0, 1) if batch_first else inputs
    states = start if isinstance(start, tuple) else (start,)
    ways = 2 if bidirectional else 1
    each = len(weights) // (num_layers * ways)
    ends = []
    for layer in range(num_layers):
        outputs = []
        for way in range(ways):
            index = layer * ways + way
            own = weights[index * each : (index + 1) * each]
            hidden, *end = _sequence(
                kind,
                inputs.flip(0) if way else inputs,
                [state[index] for state in states],
                *own[:2],
                *(own[2:4] if has_biases else (None, None)),
                own[-1] if each % 2 else None,
            )
            outputs.append(hidden.flip(0) if way else hidden)
            ends.append((hidden[-1], *end))
        inputs = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < num_layers - 1:
            inputs = F.dropout(inputs, dropout)
    output = inputs.transpose(0, 1) if batch_first else inputs
    return output, *(torch.stack(parts) for parts in zip(*ends, strict=True))


def _cell(
    kind: type[cells.Cell],
    inputs: Tensor,
    start: Any,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    """Compute what torch's function of the same arguments does."""
    states = [*start] if isinstance(start, tuple | list) else [start]
    hidden, *end = _sequence(kind, inputs[None], states, w_ih, w_hh, b_ih, b_hh, None)
    return (hidden[0], *end) if end else hidden[0]


def _sequence(
    kind: type[cells.Cell],
    inputs: Tensor,
    states: list[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
) -> tuple[Tensor, ...]:
    """Run one layer in one direction.

    Args:
        kind: What a step does.
        inputs: `(T, N, in)`.
        states: At the start, `(N, hidden)` each.
        w_ih: `(gates, in)`.
        w_hh: `(gates, hidden)`.
        b_ih: `(gates,)`.
        b_hh: `(gates,)`.
        w_hr: `(projected, hidden)`, from the state to what the layer gives, and the next step gets.

    Returns:
        `(T, N, hidden)`, and the states at the end but for `hidden`.
    """
    of_inputs = F.linear(inputs, w_ih, b_ih)[:, None]
    own = [None if weight is None else weight[None] for weight in (w_hh, w_hr)]
    bias = None if b_hh is None else b_hh.expand(1, 1, -1)
    start = [state[None] for state in states]
    constants = [
        each if each is None else each.detach() for each in (*own, bias, of_inputs, *start)
    ]
    hidden, *kept = _Run.apply(kind, *constants)
    before = torch.cat([constants[4][None], hidden[:-1]]).squeeze(1)
    of_states = F.linear(before, w_hh, b_hh)[:, None]
    projected = None if w_hr is None else F.linear(kept[-1].squeeze(1), w_hr)[:, None]
    given = (of_inputs, of_states, projected, *start, hidden, *kept)
    outputs = _Chain.apply(kind, *own, len(start), *given)
    return outputs[0].squeeze(1), *(end.squeeze(0) for end in outputs[1:])


def _batched(
    function: type[torch.autograd.Function],
    weights: int,
    size: int,
    in_dims: tuple[int | None, ...],
    args: tuple[Any, ...],
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """Call a function `(kind, *weights, *others)` for a batch, as a rule for `vmap` is to.

    Args:
        function: One of those below.
        weights: How many there are.
        size: Of the batch.
        in_dims: Where each argument has its dimension of the batch.
        args: The arguments.

    Returns:
        What the function returns, and where each part has its dimension of the batch.
    """
    dims, values = list(in_dims), list(args)
    for index in range(1, 1 + weights):
        # One that was expanded is shared all the same.
        if dims[index] is not None and values[index].stride(dims[index]) == 0:
            values[index], dims[index] = values[index].select(dims[index], 0), None
    shared = all(dim is None for dim in dims[1 : 1 + weights])
    place = -3 if shared else -4  # in front of N or of K, which it then joins
    for index, value in enumerate(values):
        if not isinstance(value, Tensor) or (shared and 1 <= index <= weights):
            continue
        if dims[index] is None:
            value = value.unsqueeze(place)
            value = value.expand(*value.shape[:place], size, *value.shape[place + 1 :])
        else:
            value = value.movedim(dims[index], place)
        values[index] = value.flatten(place, place + 1)
    parts = [
        None if part is None else part.unflatten(place + 1, (size, -1))
        for part in function.apply(*values)
    ]
    return tuple(parts), tuple(None if part is None else part.dim() + place for part in parts)


class _Run(torch.autograd.Function):
    """All steps of a layer, of constants: the states, and what the way back has to know."""

    @staticmethod
    def forward(kind: type[cells.Cell], *args: Any) -> tuple[Tensor, ...]:
        return kind.run(*args)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        return _batched(_Run, 3, info.batch_size, in_dims, args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class _Chain(torch.autograd.Function):
    """The states as a function of the gates of all steps, whose values are known."""

    @staticmethod
    def forward(
        kind: type[cells.Cell],
        w_hh: Tensor,
        w_hr: Tensor | None,
        count: int,
        of_inputs: Tensor,
        of_states: Tensor,
        projected: Tensor | None,
        *others: Tensor,
    ) -> tuple[Tensor, ...]:
        hidden, *kept = others[count:]
        return hidden.view_as(hidden), *(end.clone() for end in kind.ends(*kept))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        return _batched(_Chain, 2, info.batch_size, in_dims, args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.kind, ctx.count = inputs[0], inputs[3]
        # The inputs that no gradient needs by their values are those that it depends on.
        ctx.save_for_backward(*inputs[1:3], inputs[4], *inputs[7:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        w_hh, w_hr, of_inputs, *others = ctx.saved_tensors
        start, known = others[: ctx.count], others[ctx.count :]
        given = (len(grads), ctx.count, of_inputs, *grads, *start, *known)
        to_inputs, to_states, projected, *to_start = _Back.apply(ctx.kind, w_hh, w_hr, *given)
        to_states = to_inputs if to_states is None else to_states
        constants = (None,) * len(known)
        return None, None, None, None, to_inputs, to_states, projected, *to_start, *constants


class _Back(torch.autograd.Function):
    """From the gradients of the states to those of the gates of all steps."""

    @staticmethod
    def forward(
        kind: type[cells.Cell],
        w_hh: Tensor,
        w_hr: Tensor | None,
        ends: int,
        count: int,
        of_inputs: Tensor,
        *others: Tensor,
    ) -> tuple[Tensor | None, ...]:
        grads, start, known = others[:ends], others[ends : ends + count], others[ends + count :]
        return kind.back(w_hh, w_hr, grads, start, *known)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        return _batched(_Back, 2, info.batch_size, in_dims, args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError("a recurrent layer is differentiated twice, for which it has no rule")
