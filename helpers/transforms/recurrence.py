"""Recurrent layers under `vmap`: native kernels, and an initial state with the batch dimension."""

from typing import Any

from torch import Tensor, nn

from helpers.transforms.known_wrong import Refusal

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_CLASSES = (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell)
_FORWARDS = {kind.forward for kind in _CLASSES}


def check_forward(layer: nn.RNNBase | nn.RNNCellBase) -> None:
    """Refuse a layer with its own `forward`, to which a state may mean something else."""
    if getattr(layer.forward, "__func__", None) not in _FORWARDS:
        raise Refusal(f"{type(layer).__name__} has a forward of its own, not that of torch")


def add_zero_state(
    layer: nn.RNNBase | nn.RNNCellBase, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Pass a layer its initial state, or zeros, with the dimension of `vmap`.

    A state that lacks this dimension, as one that the layer makes, cannot be written into.
    """
    inputs = args[0] if args else kwargs.get("input")
    initial = args[1] if len(args) > 1 else kwargs.get("hx")
    if initial is None and isinstance(inputs, Tensor):
        initial = _zero_state(layer, inputs)
    states = initial if isinstance(initial, tuple | list) else [initial]
    if len(args) > 2 or not all(isinstance(tensor, Tensor) for tensor in (inputs, *states)):
        return None  # the layer takes or refuses it as without `vmap`
    start = [state + inputs.new_zeros(state.shape) for state in states]
    return args[:1], {**kwargs, "hx": start[0] if isinstance(initial, Tensor) else tuple(start)}


def _zero_state(layer: nn.RNNBase | nn.RNNCellBase, inputs: Tensor) -> Any:
    if isinstance(layer, nn.RNNCellBase):
        lead, output_size = inputs.shape[:-1], layer.hidden_size
    else:
        layers = layer.num_layers * (2 if layer.bidirectional else 1)
        batch = inputs.shape[:-1][0 if layer.batch_first else 1 :][:1]
        lead = (layers, *(batch if inputs.dim() == 3 else ()))
        output_size = layer.proj_size or layer.hidden_size
    start = inputs.new_zeros((*lead, output_size))
    if isinstance(layer, nn.LSTM | nn.LSTMCell):
        return start, inputs.new_zeros((*lead, layer.hidden_size))
    return start
