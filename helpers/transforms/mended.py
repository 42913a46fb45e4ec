"""Functions of torch whose gradients are wrong, for one image or under transforms, mended."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import debug_unwrap
from torch.overrides import TorchFunctionMode

from helpers.transforms.loops import LOOPS

_NORMS = (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm)
_CONVOLUTIONS = (F.conv2d, F.conv3d)


class Cured(TorchFunctionMode):
    """In plain autograd, layers of images with a backward that is right for one image, and loops.

    On a CPU, torch's backward of batch and instance normalisation reads the gradient of a single
    image in the wrong order where it lies in another one than the image: in that of tokens, as
    behind `flatten(2).transpose(1, 2)`, or in the usual one, where the image has its channels last.
    Right numbers in permuted places, for a batch of one in plain autograd, and under `vmap`. So
    both are put in the usual order. A grouped convolution in float64 reads an image in the wrong
    order for the gradient of its weight, where both have their channels last.
    """

    met_norm = False
    """Whether a normalisation was met."""
    used = False
    """Whether a layer was met that it cures."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if func in LOOPS:
            self.used = True
            return LOOPS[func](*args, **kwargs)
        norm = func in _NORMS
        if not norm and not (func in _CONVOLUTIONS and _is_grouped(*args, **kwargs)):
            return func(*args, **kwargs)
        self.used, self.met_norm = True, self.met_norm or norm
        outputs = _ordered(func, *args, **kwargs)
        if norm and outputs.requires_grad:
            outputs.register_hook(Tensor.contiguous)
        return outputs


class Contiguous(torch.autograd.Function):
    """The identity, whose gradient lies in memory in the order of its dimensions; see `Cured`."""

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


def _ordered(func: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Call a function with images in the usual order in memory."""
    return func(input.contiguous(), *args, **kwargs)


def _norm(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Normalise images under transforms."""
    return Contiguous.apply(_ordered(func, *args, **kwargs))


def _convolution(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Convolve images under transforms."""
    return (partial(_ordered, func) if _is_grouped(*args, **kwargs) else func)(*args, **kwargs)


def _is_grouped(*args: Any, groups: int = 1, **kwargs: Any) -> bool:
    return (*args[6:], groups)[0] > 1


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
    differences = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    distances = torch.linalg.vector_norm(differences, p, -1)
    if p != math.inf:
        return distances
    # Each of several largest differences gets the whole gradient, not a share of it.
    sizes, distances = differences.abs(), distances.detach()
    return distances + ((sizes - sizes.detach()) * (sizes == distances.unsqueeze(-1))).sum(-1)


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


def _as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Compute `torch.as_strided` by the places of its entries.

    Its own gradient mixes the samples where autograd lies outside of `vmap`.
    """
    own = _positions(input.shape, input.stride(), input.device)
    start = 0 if storage_offset is None else storage_offset - input.storage_offset()
    entries = own.new_full((int(own.max()) + 1,), len(own))  # where none lies, an index too large
    entries[own] = torch.arange(len(own), device=own.device)
    wanted = _positions(size, stride, input.device) + start
    return input.flatten()[entries[wanted]].view(tuple(size))


def _positions(size: Sequence[int], stride: Sequence[int], device: torch.device) -> Tensor:
    """Count where the entries of a tensor lie in memory, from the first one on."""
    positions = torch.zeros(1, dtype=torch.int64, device=device)
    for count, step in zip(size, stride, strict=True):
        positions = (positions[:, None] + step * torch.arange(count, device=device)).flatten()
    return positions


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
    "as_strided": _as_strided,
    "as_strided_copy": _as_strided,
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
    **LOOPS,
    **{norm: partial(_norm, norm) for norm in _NORMS},
    **{convolution: partial(_convolution, convolution) for convolution in _CONVOLUTIONS},
}
"""Functions of torch that are wrong under some transforms, and what is right in their place."""
