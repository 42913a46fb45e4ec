"""What a step of a recurrent layer does, and the way back through all steps.

Shapes are those of `helpers.transforms.recurrent`: sequences `(T, K, N, features)`, states
`(K, N, features)`, weights `(K, out, in)`. Formulas are those of `torch.nn.LSTM`, `GRU` and `RNN`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Back = tuple[Tensor | None, ...]


class Cell:
    """A kind of step. Nothing here is differentiated, so tensors are written in place."""

    @staticmethod
    def run(
        w_hh: Tensor,
        w_hr: Tensor | None,
        bias: Tensor | None,
        of_inputs: Tensor,
        *start: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run all steps.

        Args:
            w_hh: From the state to the gates.
            w_hr: From the state to what is given out, for an LSTM with projections.
            bias: What states add to the gates besides, `(K, 1, gates)`.
            of_inputs: What inputs add to the gates.
            start: The states at the start.

        Returns:
            The sequence of the states given out, and sequences that the way back needs.
        """
        raise NotImplementedError

    @staticmethod
    def ends(*kept: Tensor) -> tuple[Tensor, ...]:
        """Return the states at the end besides the one given out, from what `run` kept."""
        return ()

    @staticmethod
    def back(
        w_hh: Tensor,
        w_hr: Tensor | None,
        grads: tuple[Tensor, ...],
        start: tuple[Tensor, ...],
        hidden: Tensor,
        *kept: Tensor,
    ) -> Back:
        """Lead gradients back through all steps.

        Args:
            w_hh: As in `run`.
            w_hr: As in `run`.
            grads: Of the sequence, and of what `ends` returned.
            start: As in `run`.
            hidden: What `run` returned first.
            kept: What it returned besides.

        Returns:
            The gradients of what inputs add to the gates; of what states add to them, `None`
            where it is the same; of what `w_hr` gives out; of the states at the start.
        """
        raise NotImplementedError


class Lstm(Cell):
    """Gates: input, forget, cell, output."""

    @staticmethod
    def run(
        w_hh: Tensor, w_hr: Tensor | None, bias: Tensor | None, of_inputs: Tensor, *start: Tensor
    ) -> tuple[Tensor, ...]:
        """See `Cell`."""
        hidden, cell = start
        product = _product(w_hh)
        gates = _sum(of_inputs, bias)
        size = cell.shape[-1]
        states = gates.new_empty((*gates.shape[:-1], size))
        outputs = torch.empty_like(states)
        given = gates.new_empty((*gates.shape[:-1], hidden.shape[-1])) if w_hr is not None else None
        parts = zip(
            *(gates, gates[..., : 2 * size], *gates.chunk(4, -1), states, outputs), strict=True
        )
        for step, (gate, two, enter, forget, new, out, state, output) in enumerate(parts):
            product(gate, hidden)
            two.sigmoid_()
            new.tanh_()
            out.sigmoid_()
            torch.mul(forget, cell, out=state).addcmul_(enter, new)
            torch.tanh(state, out=output).mul_(out)
            cell, hidden = state, output
            if given is not None:
                hidden = torch.matmul(output, w_hr.mT, out=given[step])
        return (outputs, gates, states) if given is None else (given, gates, states, outputs)

    @staticmethod
    def ends(*kept: Tensor) -> tuple[Tensor, ...]:
        """See `Cell`."""
        return (kept[1][-1],)

    @staticmethod
    def back(
        w_hh: Tensor,
        w_hr: Tensor | None,
        grads: tuple[Tensor, ...],
        start: tuple[Tensor, ...],
        hidden: Tensor,
        *kept: Tensor,
    ) -> Back:
        """See `Cell`."""
        to_hidden, to_cell = grads
        gates, states = kept[:2]
        enter, forget, new, out = gates.chunk(4, -1)
        bounded = states.tanh()
        before = torch.cat([start[1][None], states[:-1]])
        by_cell = torch.stack(
            [new * enter * (1 - enter), before * forget * (1 - forget), enter * (1 - new * new)], -2
        )
        by_output = bounded * out * (1 - out)
        to_state = out * (1 - bounded * bounded)
        result = torch.empty_like(gates)
        size = states.shape[-1]
        of_cell = result[..., : 3 * size].unflatten(-1, (3, size))
        of_output = result[..., 3 * size :]
        projected = None if w_hr is None else torch.empty_like(to_hidden)
        product = _product(w_hh.mT)
        for step in reversed(range(len(gates))):
            grad = to_hidden[step]
            if step < len(gates) - 1:
                grad = product(grad.clone(), result[step + 1])
            if projected is not None:
                projected[step] = grad
                grad = grad @ w_hr
            to_cell = torch.addcmul(to_cell, grad, to_state[step])
            torch.mul(to_cell.unsqueeze(-2), by_cell[step], out=of_cell[step])
            torch.mul(grad, by_output[step], out=of_output[step])
            to_cell = to_cell * forget[step]
        return result, None, projected, result[0] @ w_hh, to_cell


class Gru(Cell):
    """Gates: reset, update, new."""

    @staticmethod
    def run(
        w_hh: Tensor, w_hr: Tensor | None, bias: Tensor | None, of_inputs: Tensor, *start: Tensor
    ) -> tuple[Tensor, ...]:
        """See `Cell`."""
        (hidden,) = start
        product = _product(w_hh)
        size = hidden.shape[-1]
        gates = _sum(of_inputs, None)
        of_states = _sum(torch.zeros_like(gates), bias)
        states = gates.new_empty((*gates.shape[:-1], size))
        parts = zip(
            *(gates[..., : 2 * size], *gates.chunk(3, -1)),
            *(of_states, of_states[..., : 2 * size], of_states[..., 2 * size :], states),
            strict=True,
        )
        for two, reset, update, new, of_state, of_two, of_new, state in parts:
            product(of_state, hidden)
            two.add_(of_two).sigmoid_()
            new.addcmul_(reset, of_new).tanh_()
            hidden = torch.lerp(new, hidden, update, out=state)
        return states, gates, of_states[..., 2 * size :].contiguous()

    @staticmethod
    def back(
        w_hh: Tensor,
        w_hr: Tensor | None,
        grads: tuple[Tensor, ...],
        start: tuple[Tensor, ...],
        hidden: Tensor,
        *kept: Tensor,
    ) -> Back:
        """See `Cell`."""
        (to_hidden,) = grads
        gates, of_new = kept
        reset, update, new = gates.chunk(3, -1)
        before = torch.cat([start[0][None], hidden[:-1]])
        by_update = (before - new) * update * (1 - update)
        by_new = (1 - update) * (1 - new * new)
        by_reset = by_new * of_new * reset * (1 - reset)
        by_state = by_new * reset
        to_inputs = torch.stack([by_reset, by_update, by_new], -2)
        to_states = torch.stack([by_reset, by_update, by_state], -2)
        product = _product(w_hh.mT)
        grad = torch.zeros_like(to_hidden[0])
        for step in reversed(range(len(gates))):
            grad = grad + to_hidden[step]
            to_inputs[step].mul_(grad.unsqueeze(-2))
            to_states[step].mul_(grad.unsqueeze(-2))
            grad = product(grad * update[step], to_states[step].flatten(-2))
        return to_inputs.flatten(-2), to_states.flatten(-2), None, grad


class _Plain(Cell):
    """One gate, which is the state."""

    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    """By what the function has returned."""

    @classmethod
    def run(
        cls,
        w_hh: Tensor,
        w_hr: Tensor | None,
        bias: Tensor | None,
        of_inputs: Tensor,
        *start: Tensor,
    ) -> tuple[Tensor, ...]:
        """See `Cell`."""
        (hidden,) = start
        product = _product(w_hh)
        states = _sum(of_inputs, bias)
        for state in states:
            hidden = cls.function(product(state, hidden))
        return (states,)

    @classmethod
    def back(
        cls,
        w_hh: Tensor,
        w_hr: Tensor | None,
        grads: tuple[Tensor, ...],
        start: tuple[Tensor, ...],
        hidden: Tensor,
    ) -> Back:
        """See `Cell`."""
        product = _product(w_hh.mT)
        result = cls.derivative(hidden)
        grad = torch.zeros_like(hidden[0])
        for row, given in zip(reversed(result.unbind()), reversed(grads[0].unbind()), strict=True):
            row.mul_(grad + given)
            grad = product(torch.zeros_like(grad), row)
        return result, None, None, grad


class Tanh(_Plain):
    """The hyperbolic tangent."""

    function = staticmethod(torch.tanh_)
    derivative = staticmethod(lambda state: 1 - state * state)


class Relu(_Plain):
    """The positive part."""

    function = staticmethod(torch.relu_)
    derivative = staticmethod(lambda state: (state > 0).to(state.dtype))


def _sum(sequence: Tensor, bias: Tensor | None) -> Tensor:
    """Return a new sequence in the order of its dimensions, with the bias added."""
    result = torch.empty_like(sequence, memory_format=torch.contiguous_format)
    return result.copy_(sequence) if bias is None else torch.add(sequence, bias, out=result)


def _product(weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what adds `values @ weight^T` to a state, in place."""
    if len(weight) > 1:
        transposed = weight.mT
        return lambda state, values: state.baddbmm_(values, transposed)
    matrix = weight[0].mT

    def add(state: Tensor, values: Tensor) -> Tensor:
        state[0].addmm_(values[0], matrix)
        return state

    return add
