"""Modules under transforms: their parameters, and a stand-in to work on."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


def select_parameters(
    model: nn.Module, wrt: Iterable[str] | None = None, *, argument: str = "wrt"
) -> dict[str, Tensor]:
    """Choose the parameters to differentiate.

    Args:
        model: Any module.
        wrt: Names of parameters, frozen ones too; `None` means all with `requires_grad`.
        argument: What the caller calls `wrt`, for the sentences of its refusals.

    Returns:
        Detached parameters by name, which share their storage with the model's, in the order of
        `wrt` or else of `model.named_parameters()`. A tied weight has one name, its first.

    Raises:
        TypeError: `wrt` is one string.
        ValueError: `wrt` holds a name that the model does not have.
    """
    parameters = dict(model.named_parameters())
    if wrt is None:
        wrt = [name for name, parameter in parameters.items() if parameter.requires_grad]
    elif isinstance(wrt, str):
        raise TypeError(f"{argument} must be several names, for example [{wrt!r}], got one string")
    else:
        wrt = list(wrt)
        unknown = [name for name in wrt if name not in parameters]
        if unknown:
            raise ValueError(
                f"{argument} names {', '.join(map(repr, unknown))}, which is no parameter of this "
                f"model: it has {', '.join(parameters)}"
            )
    return {name: parameters[name].detach() for name in wrt}


def with_tensors(model: nn.Module, replace: Callable[[Tensor], Tensor]) -> nn.Module:
    """Copy a model's structure around other tensors.

    Transforms that swap tensors in a module can leave them there: a layer registered under two
    names keeps a dead tracking tensor. So they get a copy, and the original stays as it was.

    Args:
        model: Any module; it is not changed.
        replace: What stands in the copy for each parameter and buffer. It is called once for a
            tensor that has several names, so that ties stay ties.

    Returns:
        A copy in the same mode, whose parameters do not require a gradient.
    """
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(replace(parameter), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = replace(buffer)
    # A tensor with a graph, kept by an earlier forward as a plain attribute or in a list or a
    # dictionary that is one, cannot be deep-copied.
    for module in model.modules():
        for value in tree_leaves(vars(module)):
            if isinstance(value, Tensor) and not value.is_leaf:
                memo.setdefault(id(value), value.detach())
    return copy.deepcopy(model, memo)


def detached(model: nn.Module) -> nn.Module:
    """Copy a model's structure around the same storage, for transforms to work on.

    It costs no memory for a second set of weights. In the copy, recurrent layers start from a
    state that is made from their input; see `_add_zero_state`.
    """
    stand_in = with_tensors(model, lambda tensor: tensor.detach())
    for module in stand_in.modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            module.register_forward_pre_hook(_add_zero_state, with_kwargs=True)
    return stand_in


def _add_zero_state(
    layer: nn.RNNBase | nn.RNNCellBase, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Give a recurrent layer that is called without an initial state the zeros it would make.

    The layer makes them with `torch.zeros`, which under `vmap` have no batch dimension; adding a
    batched value to them in place then fails ("doesn't match the broadcast shape"). Zeros made
    from the input with `new_zeros` have one.
    """
    inputs = args[0] if args else kwargs.get("input")
    given = args[1] if len(args) > 1 else kwargs.get("hx")
    if given is not None or not isinstance(inputs, Tensor):
        return None
    if isinstance(layer, nn.RNNCellBase):
        lead, output_size = inputs.shape[:-1], layer.hidden_size
    else:
        layers = layer.num_layers * (2 if layer.bidirectional else 1)
        batch = inputs.shape[:-1][0 if layer.batch_first else 1 :][:1] if inputs.dim() == 3 else ()
        lead, output_size = (layers, *batch), layer.proj_size or layer.hidden_size
    state = inputs.new_zeros((*lead, output_size))
    if isinstance(layer, nn.LSTM | nn.LSTMCell):
        state = (state, inputs.new_zeros((*lead, layer.hidden_size)))
    return args[:1], {**kwargs, "hx": state}


@contextmanager
def kept(*dictionaries: dict[str, Any]) -> Iterator[None]:
    """Undo what a block binds to the names in these dictionaries."""
    before = [dictionary.copy() for dictionary in dictionaries]
    try:
        yield
    finally:
        for dictionary, values in zip(dictionaries, before, strict=True):
            dictionary.clear()
            dictionary.update(values)


def attributes_kept(model: nn.Module) -> AbstractContextManager[None]:
    """Undo what a block binds to plain attributes of a model's modules: counters, caches, stashes.

    Each sample, and each chunk of samples, starts from the same model. Without this, a value that
    a forward computed from one chunk and kept on `self` is read in the next one as if it were its
    own: wrong numbers, or an error that names no cause.
    """
    return kept(*(vars(module) for module in model.modules()))


def tensors_kept(model: nn.Module) -> AbstractContextManager[None]:
    """Undo what a block leaves in place of a model's parameters and buffers.

    `functional_call` leaves the last tensors that it was given where a layer has two names.
    """
    modules = list(model.modules())
    return kept(*(m._parameters for m in modules), *(m._buffers for m in modules))
