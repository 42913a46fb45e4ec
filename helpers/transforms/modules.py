"""Modules under transforms: their parameters, and a stand-in to work on."""

import copy
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from helpers.transforms import state
from helpers.transforms.reach import Reach


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
        ValueError: `wrt` holds a name that the model does not have, or a layer has no shape yet.
    """
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if nn.parameter.is_lazy(parameter):
            raise ValueError(
                f"{name} belongs to a lazy layer that was never initialised, so it has no shape: "
                "run the model once on a batch first"
            )
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
    for module in model.modules():
        # A module has a dozen dictionaries for hooks. To make empty ones costs a tenth of a copy.
        for value in vars(module).values():
            if type(value) in (dict, OrderedDict) and not value:
                memo[id(value)] = type(value)()
    with torch.no_grad():  # or the copy of a scripted module would hang on the original's graph
        try:
            return copy.deepcopy(model, memo.copy())
        except Exception:  # any object that a model holds may refuse, in any way
            return copy.deepcopy(model, memo | _not_copied(model, memo))


def _not_copied(model: nn.Module, memo: dict[int, Any]) -> dict[int, Any]:
    """Find what a deep copy refuses, and what is to stand in its place.

    That is a tensor with a graph, kept by an earlier forward; and objects such as locks and open
    files, which the copy shares with the model.
    """
    places: dict[int, Any] = {}
    for value in state.walk([model]):
        if isinstance(value, Tensor):
            if not value.is_leaf and id(value) not in memo:
                places[id(value)] = value.detach().clone()
        elif not isinstance(value, nn.Module | dict | list | tuple | set | deque):
            try:
                copy.deepcopy(value, memo | places)
            except Exception:
                if not state.is_object(value) or not vars(value):
                    places[id(value)] = value
    return places


class StandIn:
    """A copy of a model to run in its place, with tensors of its own.

    Whatever a forward does, it does to the copy: it may write into weights, register hooks, keep
    what it likes on `self`. `undo` brings the copy back to the state of the model.

    A copy cannot reach what a function closes over. A forward that was wrapped on the instance,
    or a hook that uses another layer, still holds the model; `reaching` leads those to the tensors
    that are meant.
    """

    def __init__(self, model: nn.Module) -> None:
        self.original = model
        self.model = with_tensors(model, lambda tensor: tensor.detach().clone())
        self.params = dict(self.model.named_parameters())
        self.buffers = dict(self.model.named_buffers())
        for module in self.model.modules():
            if isinstance(module, nn.RNNBase | nn.RNNCellBase):
                module.register_forward_pre_hook(_add_zero_state, with_kwargs=True)
        self._sources = dict(model.named_parameters()) | dict(model.named_buffers())
        own = self.params | self.buffers
        self._pairs = [(own[name], source) for name, source in self._sources.items()]
        self.names = {id(tensor): name for name, tensor in (*self._sources.items(), *own.items())}
        """By the `id` of each tensor that the model may meet, the name of the one that is meant."""
        self._versions = [(tensor, source, tensor._version) for tensor, source in self._pairs]
        self._keep(self.model, [*own.values()])

    def _keep(self, model: nn.Module, registered: list[Tensor]) -> None:
        self._runs = model
        self._kept = state.Kept([model], registered)
        if self._kept.has_functions:  # they may hold the original
            registered += self._sources.values()
            self._kept = state.Kept([model, self.original], registered)

    def replace(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        """Let a module made of `self.model` stand in from now on.

        Args:
            model: The module that will be run.
            tensors: Its tensors, by the names that they have in `self.model`.
        """
        self.names |= {id(tensor): name for name, tensor in tensors.items()}
        self._keep(model, [*model.parameters(), *model.buffers()])

    @property
    def has_functions(self) -> bool:
        """Whether functions stand in the model, which may hold the original."""
        return self._kept.has_functions

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """The modules whose code may run."""
        return (self.model, self._runs, self.original)

    def reach(self, tensors: dict[str, Tensor], *, cure: bool = True) -> Reach:
        """Make what leads calls of torch to these tensors; see `Reach`."""
        return Reach(self.names, tensors, cure=cure)

    def reaching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Let `function(model, params, buffers, *sample)` reach its tensors from everywhere."""

        def run(
            model: nn.Module, params: dict[str, Tensor], buffers: dict[str, Tensor], *sample: Tensor
        ) -> Any:
            with self.reach(params | buffers):
                return function(model, params, buffers, *sample)

        return run

    def undo(self) -> None:
        """Bring the state back that the model has, all but the values of registered tensors."""
        self._kept.undo()

    def undo_writes(self, *, hidden: bool = False) -> bool:
        """Bring the values of registered tensors back.

        Args:
            hidden: Whether to compare all numbers too: a write into `tensor.data` leaves no trace
                but them.

        Returns:
            Whether a write was hidden.
        """
        for index, (tensor, source, version) in enumerate(self._versions):
            if tensor._version != version or tensor.grad_fn is not None:
                state.rewrite(tensor, source)
                self._versions[index] = (tensor, source, tensor._version)
        if not hidden:
            return False
        changed = [pair for pair in self._pairs if not _same(*pair)]
        for tensor, source in changed:
            state.rewrite(tensor, source)
        self._versions = [(tensor, source, tensor._version) for tensor, source in self._pairs]
        return bool(changed)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Give a model back as it was, where bare transforms may have changed it by a closure."""
    registered = [*model.parameters(), *model.buffers()]
    values = [tensor.detach().clone() for tensor in registered]
    kept = state.Kept([model], registered)
    try:
        yield
    finally:
        kept.undo()
        for tensor, before in zip(registered, values, strict=True):
            if not _same(tensor, before):
                state.rewrite(tensor, before)


def call(model: nn.Module, tensors: dict[str, Tensor], *args: Any) -> Any:
    """Run a model with these tensors in place of its own, or as it is where there are none.

    What `functional_call` refuses, such as a scripted module, runs in the second way.
    """
    return functional_call(model, tensors, args) if tensors else model(*args)


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(one, other)


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
    start = inputs.new_zeros((*lead, output_size))
    if isinstance(layer, nn.LSTM | nn.LSTMCell):
        start = (start, inputs.new_zeros((*lead, layer.hidden_size)))
    return args[:1], {**kwargs, "hx": start}


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


def tensors_kept(model: nn.Module) -> AbstractContextManager[None]:
    """Undo what a block leaves in place of a model's parameters and buffers.

    `functional_call` leaves the last tensors that it was given where a layer has two names.
    """
    modules = list(model.modules())
    return kept(*(m._parameters for m in modules), *(m._buffers for m in modules))
