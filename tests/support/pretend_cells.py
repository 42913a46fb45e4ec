"""Recurrent cells that accelerators compute in one operation, which a CPU does not have."""

import torch
from torch import Tensor

Several = tuple[Tensor | None, ...]


def _lstm_cell(
    of_input: Tensor, of_hidden: Tensor, state: Tensor, *biases: Tensor | None
) -> Several:
    """Return output, state and workspace."""
    gates = sum((each for each in biases if each is not None), of_input + of_hidden)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * state + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    of_output: Tensor | None, of_new: Tensor | None, state: Tensor, new: Tensor, *rest: object
) -> Several:
    """Return the gradients of the gates, of the state and of the bias."""
    workspace, has_bias = rest
    i, f, g, o = workspace.chunk(4, 1)
    of_output = torch.zeros_like(new) if of_output is None else of_output
    of_new = of_output * o * (1 - new.tanh() ** 2) + (0 if of_new is None else of_new)
    parts = [of_new * g * i * (1 - i), of_new * state * f * (1 - f)]
    parts += [of_new * i * (1 - g**2), of_output * new.tanh() * o * (1 - o)]
    gates = torch.cat(parts, 1)
    return gates, of_new * f, gates.sum(0) if has_bias else None


def _gru_cell(
    of_input: Tensor, of_hidden: Tensor, state: Tensor, *biases: Tensor | None
) -> Several:
    """Return output and workspace."""
    if biases and biases[0] is not None:
        of_input, of_hidden = of_input + biases[0], of_hidden + biases[1]
    (ir, iz, i_n), (hr, hz, hn) = of_input.chunk(3, 1), of_hidden.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i_n + r * hn).tanh()
    return n + z * (state - n), torch.cat([r, z, n, state, hn], 1)


def _gru_cell_backward(of_output: Tensor, workspace: Tensor, has_bias: bool) -> Several:
    """Return the gradients of both kinds of gates, of the state and of both biases."""
    r, z, n, state, hn = workspace.chunk(5, 1)
    of_n = of_output * (1 - z) * (1 - n**2)
    of_r, of_z = of_n * hn * r * (1 - r), of_output * (state - n) * z * (1 - z)
    of_input = torch.cat([of_r, of_z, of_n], 1)
    of_hidden = torch.cat([of_r, of_z, of_n * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, of_output * z, *biases


CELLS = {
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
"""Operations that a CPU does not have."""
