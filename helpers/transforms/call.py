"""A model that runs with other tensors in place of its own, as transforms need it."""

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import debug_unwrap
from torch.overrides import TorchFunctionMode

_NORMS = (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm)
_CONVOLUTIONS = (F.conv2d, F.conv3d)


RECURRENT = (nn.RNNBase, nn.RNNCellBase)


class OutOfReach(RuntimeError):
    """A forward uses a parameter in a way that no transform follows."""


def parameter_hooks(parameter: nn.Parameter) -> list[Callable[[Tensor], Any]]:
    """Return what `register_hook` has put on a parameter, to be run on its gradient."""
    return [*(parameter._backward_hooks or {}).values()]


def on_meta(model: nn.Module) -> nn.Module:
    """Copy a model around tensors that have shapes and no numbers, to be called with others.

    Args:
        model: Any module. A tensor with several names has them in the copy, too; its weak
            references lead to modules of the copy, and what a forward has computed is marked as
            such, by an attribute.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # which deepcopy would refuse
                memo[id(value)] = value.detach()
                memo[id(value)].computed = True
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    for parameter in model.parameters():
        like = torch.empty_like(parameter, device="meta", requires_grad=False)
        memo[id(parameter)] = nn.Parameter(like, requires_grad=False)
    duplicate = copy.deepcopy(model, memo)
    for module in duplicate.modules():
        for name, value in vars(module).items():
            if isinstance(value, weakref.ref) and id(value()) in memo:
                vars(module)[name] = weakref.ref(memo[id(value())])
    return duplicate


class Cured(TorchFunctionMode):
    """Layers of images with a backward that is right for one image.

    For normalisations see `Contiguous`. A grouped convolution in float64 reads an image in the
    wrong order for the gradient of its weight, where both have their channels last.
    """

    met_norm = False
    """Whether a normalisation was met."""
    used = False
    """Whether a layer was met that it cures."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        if func in _CONVOLUTIONS and (*args[6:], (kwargs or {}).get("groups", 1))[0] > 1:
            self.used = True
            images, *rest = args or [(kwargs := dict(kwargs)).pop("input")]
            return func(images.contiguous(), *rest, **(kwargs or {}))
        if func not in _NORMS:
            return func(*args, **(kwargs or {}))
        self.used = self.met_norm = True
        images, *rest = args or [(kwargs := dict(kwargs)).pop("input")]
        return self._contiguous(func(images.contiguous(), *rest, **(kwargs or {})))

    def _contiguous(self, outputs: Tensor) -> Tensor:
        """Let the gradient at these outputs lie in memory in order, in plain autograd."""
        if outputs.requires_grad:
            outputs.register_hook(Tensor.contiguous)
        return outputs


class ParameterAliases(Cured):
    """Give calls of torch the tensors that are meant in place of parameters that are met.

    The parameters stay where they are, in their modules, in lists, in what functions close over,
    and code that asks for their class or identity gets the answer of every other day.

    Args:
        names: By the `id` of each parameter and buffer, its name.
        tensors: Those that are meant, by name.
    """

    def __init__(self, names: Mapping[int, str], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.met: set[str] = set()
        """The names of parameters and buffers that were met."""
        self._names, self._tensors = names, tensors

    def __enter__(self) -> "ParameterAliases":
        """Begin, for scripted functions too, which no mode sees."""
        self._scripted, begun = torch.jit.ScriptFunction.__call__, set()

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            if function not in begun:  # what was optimised for plain autograd is wrong here
                begun.add(function)
                function._debug_flush_compilation_cache()
            kwargs = dict(zip(kwargs, self._replaced([*kwargs.values()]), strict=True))
            return self._scripted(function, *self._replaced(args), **kwargs)

        torch.jit.ScriptFunction.__call__ = call
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        """End."""
        torch.jit.ScriptFunction.__call__ = self._scripted
        super().__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        args = self._replaced(args)
        if kwargs:
            kwargs = dict(zip(kwargs, self._replaced([*kwargs.values()]), strict=True))
        if func in _NORMS:
            return super().__torch_function__(func, types, args, kwargs)
        return self._call(func, args, kwargs or {})

    def _call(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function that is given the tensors that are meant, or what computes the same."""
        return super().__torch_function__(MENDED.get(func, func), (), args, kwargs)

    def _contiguous(self, outputs: Tensor) -> Tensor:
        """Do the same under transforms, and outside of them."""
        return Contiguous.apply(outputs)

    def _replaced(self, values: Any) -> Any:
        """Return a list or a tuple with the tensors that are meant."""
        replaced = None
        for index, value in enumerate(values):
            if type(value) in (list, tuple):
                other = self._replaced(value)
            elif (name := self._names.get(id(value))) is None or name not in self._tensors:
                continue
            else:
                self.met.add(name)
                other = self._tensors[name]
            if other is not value:
                replaced = replaced or [*values]
                replaced[index] = other
        return values if replaced is None else type(values)(replaced)


class Contiguous(torch.autograd.Function):
    """The identity, whose gradient lies in memory in the order of its dimensions.

    On a CPU, torch's backward of batch and instance normalisation reads the gradient of a single
    image in the wrong order where it lies in another one than the image: in that of tokens, as
    behind `flatten(2).transpose(1, 2)`, or in the usual one, where the image has its channels last.
    Right numbers in permuted places, for a batch of one in plain autograd, and under `vmap`. So
    both are put in the usual order.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(outputs: Tensor) -> Tensor:
        """Return the same memory, into which a layer behind it may write."""
        return outputs.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Tensor:
        """Copy the gradient, if it has to be."""
        return grads.contiguous()


def _prelu(inputs: Tensor, weight: Tensor) -> Tensor:
    """Compute `torch.prelu` by what it is made of.

    Under `vmap` over `jacrev`, torch's own backward sums over the wrong dimension: it raises, or
    where there are as many outputs as samples returns wrong numbers.
    """
    if weight.dim() == 1 and inputs.dim() > 1:
        weight = weight.view(-1, *(1,) * (inputs.dim() - 2))
    return torch.where(inputs > 0, inputs, weight * inputs)


def _select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """Compute `torch.select_scatter` by another function.

    Its own gradient by `src` is wrong where autograd lies outside of `vmap`.
    """
    index %= input.shape[dim]
    return torch.slice_scatter(input, src.unsqueeze(dim), dim, index, index + 1)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Compute `F.embedding` with gradients as its options ask for, which need not be sparse.

    Where autograd lies outside of `vmap`, torch looks for the row of the padding in the tables of
    all samples, one below the other, and counts the words of all samples.
    """
    if padding_idx is None and not scale_grad_by_freq:
        return F.embedding(input, weight, padding_idx, max_norm, norm_type, False, sparse)
    factors = torch.ones_like(input, dtype=weight.dtype)
    if scale_grad_by_freq:
        counts = factors.new_zeros(len(weight)).index_add(0, input.flatten(), factors.flatten())
        factors = factors / counts[input]
    if padding_idx is not None:
        factors = factors * (input != padding_idx % len(weight))
    words = F.embedding(input, weight, max_norm=max_norm, norm_type=norm_type)
    return words.detach() + (words - words.detach()) * factors.unsqueeze(-1)


def _plain_embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, *options: bool, **named: bool
) -> Tensor:
    """Compute `torch.embedding`, which takes the same in another order."""
    scale = options[0] if options else named.get("scale_grad_by_freq", False)
    padding = None if padding_idx == -1 else padding_idx
    return _embedding(indices, weight, padding, scale_grad_by_freq=scale)


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """Compute `torch.cdist` by differences, where torch does not do so by matrix products.

    Its own backward is wrong under `vmap` over `jacrev`.
    """
    mode = compute_mode or "use_mm_for_euclid_dist_if_necessary"
    large = max(x1.shape[-2], x2.shape[-2]) > 25 and not mode.startswith("donot")
    if p == 2 and (large or mode == "use_mm_for_euclid_dist"):
        return torch.cdist(x1, x2, p, mode)
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)


def _lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """Compute `torch.linalg.lu_solve` by triangular systems.

    Under `vmap` over `jacrev`, its own is wrong where there are as many samples as rows.
    """
    if not left:
        return _lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    rows, lower, upper = torch.lu_unpack(LU, pivots)
    solve = torch.linalg.solve_triangular
    if adjoint:
        return rows @ solve(
            lower.mH, solve(upper.mH, B, upper=False), upper=True, unitriangular=True
        )
    return solve(upper, solve(lower, rows.mT @ B, upper=False, unitriangular=True), upper=True)


def _solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Compute `torch.linalg.solve` of tensors with as many dimensions as each other.

    Of others, `vmap` takes some matrices for batches of vectors.
    """
    if B.dim() == 1 or B.shape == A.shape[:-1]:
        return _solve(A, B.unsqueeze(-1), left=left).squeeze(-1)
    lead = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    A, B = (each.expand(*lead, *each.shape[-2:]) for each in (A, B))
    return torch.linalg.solve(A, B, left=left)


def _index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Compute `torch.index_fill`, which under `vmap` gives the value of one sample to all."""
    places = torch.arange(input.shape[dim], device=index.device)[:, None]
    filled = (places == (index % len(places)).reshape(1, -1)).any(1)
    return torch.where(
        filled.view(-1, *(1,) * (-dim - 1 if dim < 0 else input.dim() - 1 - dim)), value, input
    )


def _in_autograd(read: Callable[[Tensor], Any], known: Callable[[Any], bool]) -> Callable:
    """Read what only one of the transforms around a tensor may know, as `vmap` never does."""

    def run(tensor: Tensor) -> Any:
        value = read(tensor)
        while not known(value) and (inner := debug_unwrap(tensor, recurse=False)) is not tensor:
            tensor, value = inner, read(inner)
        return value

    return run


_AUTOGRAD = {
    Tensor.requires_grad: bool,
    Tensor.grad_fn: lambda node: node is not None,
    Tensor.is_leaf: lambda leaf: not leaf,
}
_BY_NAME = {
    "prelu": _prelu,
    "select_scatter": _select_scatter,
    "embedding": _plain_embedding,
    "index_fill": _index_fill,
    "lu_solve": lambda b, LU_data, LU_pivots: _lu_solve(LU_data, LU_pivots, b),
}
MENDED: dict[Callable[..., Any], Callable[..., Any]] = {
    F.embedding: _embedding,
    torch.cdist: _cdist,
    torch.linalg.lu_solve: _lu_solve,
    torch.linalg.solve: _solve,
    **{
        getattr(place, name): mended
        for name, mended in _BY_NAME.items()
        for place in (torch, Tensor, torch.ops.aten)
        if hasattr(place, name)
    },
    **{each.__get__: _in_autograd(each.__get__, known) for each, known in _AUTOGRAD.items()},
}
"""Functions of torch that are wrong under some transforms, and what is right in their place."""


def swap_registered(
    model: nn.Module, names: Mapping[int, str], tensors: Mapping[str, Tensor]
) -> None:
    """Put other tensors where a model has its parameters and buffers, as `functional_call` does.

    For calls that no mode sees, such as that of a `torch.autograd.Function`. It lasts until the
    model is put back.

    Args:
        model: Any module.
        names: By the `id` of each parameter and buffer, its name.
        tensors: What is to stand there, by name.
    """
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):  # it has its tensors elsewhere
            continue
        for own in (module._parameters, module._buffers):
            for key, tensor in own.items():
                if names.get(id(tensor)) in tensors:
                    own[key] = tensors[names[id(tensor)]]


def check_within_reach(value: Any, parameters: Iterable[Tensor]) -> None:
    """Raise `OutOfReach` if what a transformed function computed hangs on a parameter itself.

    The parameters require a gradient while transforms differentiate by tensors in their place. So
    one that was used as it is, by a view of it or in a `torch.autograd.Function`, has left a graph.

    Args:
        value: What the function returned, under the transforms.
        parameters: Those of the model, not the tensors in their place.
    """
    value = debug_unwrap(value) if isinstance(value, Tensor) else None
    if value is None or not value.requires_grad:
        return
    own = [*map(id, parameters)]
    if any(id(getattr(node, "variable", None)) in own for node in graph(value)):
        raise OutOfReach("a parameter is used as it is, out of reach of the transforms")


def graph(value: Tensor) -> Iterator[Any]:
    """Yield the nodes of the graph behind a tensor, in plain autograd."""
    seen, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield node


@contextmanager
def batchable_recurrence(model: nn.Module) -> Iterator[None]:
    """Let recurrent layers, where there are any, run on kernels that `vmap` can batch.

    Those of oneDNN and cuDNN are one operation for all steps, without a rule for `vmap`. And the
    states that a layer makes for itself have no batch dimension, into which it then adds.
    """
    hooks, before = [], []
    for part in model.modules():
        if isinstance(part, RECURRENT):
            hooks.append(part.register_forward_pre_hook(add_zero_state, with_kwargs=True))
    try:
        for backend in (torch.backends.mkldnn, torch.backends.cudnn) if hooks else ():
            before.append((backend, backend.enabled))
            backend.enabled = False
        yield
    finally:
        for backend, enabled in before:
            backend.enabled = enabled
        for hook in hooks:
            hook.remove()


def add_zero_state(
    layer: nn.RNNBase | nn.RNNCellBase, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Give a recurrent layer an initial state with the batch dimension of `vmap`.

    That is the zeros which the layer would make, or the state that it is called with, and zeros.
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
        if isinstance(layer, nn.RNNCellBase):
            lead, output_size = inputs.shape[:-1], layer.hidden_size
        else:
            layers = layer.num_layers * (2 if layer.bidirectional else 1)
            batch = inputs.shape[:-1][0 if layer.batch_first else 1 :][:1]
            lead = (layers, *(batch if inputs.dim() == 3 else ()))
            output_size = layer.proj_size or layer.hidden_size
        start = inputs.new_zeros((*lead, output_size))
        if isinstance(layer, nn.LSTM | nn.LSTMCell):
            start = (start, inputs.new_zeros((*lead, layer.hidden_size)))
    return args[:1], {**kwargs, "hx": start}
