"""Recurrent layers under `vmap`: native kernels, and an initial state with the batch dimension."""

from typing import Any

from torch import Tensor, nn

from helpers.transforms.known_wrong import Refusal

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_FORWARDS = {
    nn.RNN.forward,
    nn.LSTM.forward,
    nn.GRU.forward,
    nn.RNNCell.forward,
    nn.LSTMCell.forward,
    nn.GRUCell.forward,
}

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def check_forward(layer: nn.RNNBase | nn.RNNCellBase) -> None:
    """Refuse a layer with its own `forward`, to which a state may mean something else."""
    if getattr(layer.forward, "__func__", None) not in _FORWARDS:
        raise Refusal(f"{type(layer).__name__} has a forward of its own, not that of torch")


def add_zero_state(
    layer: nn.RNNBase | nn.RNNCellBase, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Pass a layer its initial state, or zeros, with the dimension of `vmap`.

    A state that lacks this dimension, as one that the layer makes, cannot be written into.
    """
    inputs = args[0] if args else kwargs.get("input")
    initial = args[1] if len(args) > 1 else kwargs.get("hx")
    if initial is None and isinstance(inputs, Tensor):
        initial = _zero_state(layer, inputs)
    # An LSTM has two states, the others have one.
    states = initial if isinstance(initial, tuple | list) else [initial]
    are_tensors = all(isinstance(tensor, Tensor) for tensor in (inputs, *states))
    if len(args) > 2 or not are_tensors:
        return None  # the layer takes or refuses it as without `vmap`
    started = []
    for state in states:
        # Zeros made from the inputs have the dimension of `vmap`, and pass it on to the sum.
        started.append(state + inputs.new_zeros(state.shape))
    changed = dict(kwargs)
    changed["hx"] = started[0] if isinstance(initial, Tensor) else tuple(started)
    return args[:1], changed


def _zero_state(layer: nn.RNNBase | nn.RNNCellBase, inputs: Tensor) -> Any:
    """Make the state of zeros with which a layer of torch begins."""
    if isinstance(layer, nn.RNNCellBase):  # inputs are (B, features), or (features,)
        leading = list(inputs.shape[:-1])
        output_size = layer.hidden_size
    else:  # inputs are (T, B, features), (B, T, features), or (T, features)
        directions = 2 if layer.bidirectional else 1
        leading = [layer.num_layers * directions]
        if inputs.dim() == 3:
            leading.append(inputs.shape[0] if layer.batch_first else inputs.shape[1])
        output_size = layer.proj_size or layer.hidden_size
    outputs = inputs.new_zeros([*leading, output_size])
    if isinstance(layer, nn.LSTM | nn.LSTMCell):
        return outputs, inputs.new_zeros([*leading, layer.hidden_size])
    return outputs
