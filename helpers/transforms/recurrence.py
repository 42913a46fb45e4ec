"""Recurrent layers under `vmap`: on `switches.native_kernels`, from a state of their batch size."""

from typing import Any

from torch import Tensor, nn

RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def add_zero_state(
    layer: nn.RNNBase | nn.RNNCellBase, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Give a layer its initial state, zeros unless it got one, with the dimension of `vmap`.

    A state that the layer makes itself lacks that dimension, and the layer writes into it.
    """
    inputs = args[0] if args else kwargs.get("input")
    given = args[1] if len(args) > 1 else kwargs.get("hx")
    if not isinstance(inputs, Tensor):
        return None
    if isinstance(given, tuple):
        start = tuple(state + inputs.new_zeros(state.shape) for state in given)
    elif given is not None:
        start = given + inputs.new_zeros(given.shape)
    else:
        start = _zero_state(layer, inputs)
    return args[:1], {**kwargs, "hx": start}


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
