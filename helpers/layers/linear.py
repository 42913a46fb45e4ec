"""Linear layers: `linear`, `addmm`, `matmul`, or `einsum` with a weight."""

import functools
import itertools
import math
import re
import string
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers.layer_call import IsWeight, LayerCall, MatchedCall, squared_norms, unless_lost

# Gram matrices give norms faster if they take less than this share of the outer products'
# multiplications, as measured at 8 to 65 positions and 32 to 1000 inputs and outputs.
_GRAM, _GRAM_THEN_TOTAL = 0.75, 0.4

# From this size on, a single outer product is faster as a matrix product, which handles several
# rows at a time, than as an elementwise product.
_LARGE = 2**18


class Linear(LayerCall):
    """A weight times inputs: the gradient is a sum of outer products. Also a base class."""

    FORMULA = "n...o,n...i->noi"

    def matrices(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield output gradients `(b, groups, T, out)` and inputs `(b, groups, T, in)`."""
        order = self._orders()
        for grads, inputs in self.operands():
            yield _matrices(grads, order[0]), _matrices(inputs, order[1])

    def write(self, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples straight into `out`."""
        start = 0
        for grads, inputs in self.matrices():
            rows = self._ordered(out[start : start + len(grads)])
            _add_outer(grads.flatten(0, 1).mT, inputs.flatten(0, 1), rows, add)
            start += len(grads)

    def squares(self, *, then_total: bool = False) -> Tensor | None:
        """Return squared norms from T x T products; see `LayerCall`."""
        positions, inputs, outputs = self._sizes()
        share = _GRAM_THEN_TOTAL if then_total else _GRAM
        if positions > 1 and positions * (inputs + outputs) > share * inputs * outputs:
            return None
        pieces = [_squares(*sides) for sides in self.matrices()]
        if any(piece is None for piece in pieces):
            return None
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def total(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor, as one product."""
        ((grads, inputs),) = self.matrices()
        grads = (grads * factors.view(-1, 1, 1, 1)).flatten(0, 2)
        order = [*itertools.chain(*self._orders()[2])]
        total = (grads.mT @ inputs.flatten(0, 2)).view([self.shape[dim - 1] for dim in order])
        return total.permute([order.index(dim + 1) for dim in range(len(order))])

    def reduced(self, left: Any, right: Any) -> Tensor | None:
        """Project the gradients without forming them; see `LayerCall`."""
        (_, outputs, inputs), pieces = self._orders()[2], []
        first = min(outputs + inputs)
        for grads, values in self.matrices():
            rows, columns = (values, grads) if first in inputs else (grads, values)
            if rows.shape[1] > 1 or [first] not in (outputs, inputs):
                return None  # each group has part of the rows, or rows span several dimensions
            rows = left(rows.squeeze(1)) if left else rows.squeeze(1)
            columns = right(columns.squeeze(1)) if right else columns.squeeze(1)
            dtype = torch.promote_types(rows.dtype, columns.dtype)
            pieces.append(rows.to(dtype).mT @ columns.to(dtype))
        return torch.cat(pieces)

    def _sizes(self) -> tuple[int, int, int]:
        """Return T and the numbers of inputs and outputs of a group."""
        (_, positions, outputs), (_, _, inputs), _ = self._orders()
        grads, activations = self.output_grads.shape, self.activations.shape
        return _size(grads, positions), _size(activations, inputs), _size(grads, outputs)

    def _ordered(self, out: Tensor) -> Tensor:
        """Return `out`, `(b, *shape)`, as `(b, *groups, *outputs, *inputs)`."""
        return out.permute(0, *itertools.chain(*self._orders()[2]))

    def _orders(self) -> tuple[list[list[int]], ...]:
        return _orders(self.formula, self.output_grads.dim())


@functools.cache
def _orders(formula: str, dims: int) -> tuple[list[list[int]], ...]:
    """Classify the dimensions of a formula's three terms.

    Returns `[groups, positions, outputs]` of the output gradients, `[groups, positions, inputs]` of
    the activations, and `[groups, outputs, inputs]` of the weight.
    """
    dots = dims - len(formula.partition(",")[0].replace("...", ""))
    formula = formula.replace("...", string.ascii_uppercase[:dots])
    grads, activations, weight = re.split(",|->", formula)
    groups = [letter for letter in weight[1:] if letter in grads and letter in activations]
    positions = [letter for letter in grads if letter not in weight]
    outputs = [letter for letter in weight if letter not in activations]
    inputs = [letter for letter in weight if letter not in grads]
    of_terms = {
        grads: (groups, positions, outputs),
        activations: (groups, positions, inputs),
        weight: (groups, outputs, inputs),
    }
    return tuple(
        [[*map(term.index, letter)] for letter in letters] for term, letters in of_terms.items()
    )


def _size(shape: torch.Size, dims: list[int]) -> int:
    return math.prod([shape[dim] for dim in dims])


def _matrices(tensor: Tensor, order: list[list[int]]) -> Tensor:
    """Return a tensor as `(b, groups, T, side)`."""
    sizes = [_size(tensor.shape, dims) for dims in order]
    return tensor.permute(0, *itertools.chain(*order)).reshape(len(tensor), *sizes)


def _add_outer(grads: Tensor, inputs: Tensor, out: Tensor, add: bool) -> None:
    """Write matrix products into `out`, `(b, *groups, ...)`, or add them to it."""
    try:
        matrices = out.view(len(grads), grads.shape[1], inputs.shape[2])
    except RuntimeError:  # its dimensions do not lie side by side in memory
        values = (grads @ inputs).view(out.shape)
        out.add_(values) if add else out.copy_(values)
        return
    if grads.shape[2] > 1 or matrices[:1].numel() >= _LARGE:
        matrices.baddbmm_(grads, inputs, beta=int(add))
    elif add:
        matrices.addcmul_(grads, inputs)
    else:
        torch.mul(grads, inputs, out=matrices)


def _squares(grads: Tensor, inputs: Tensor) -> Tensor | None:
    """Return squared norms of `grads^T inputs` by T x T products of their rows (Gram matrices)."""
    count = max(inputs.shape[3], grads.shape[3])
    if inputs.shape[1:3].numel() == 1:
        x, d = squared_norms(inputs), squared_norms(grads)
        squares = x * d
        return unless_lost(squares, squares, (x.sqrt(), d.sqrt(), count))
    x, d = inputs.norm(dim=3), grads.norm(dim=3)
    return unless_lost(
        ((inputs @ inputs.mT) * (grads @ grads.mT)).sum((1, 2, 3)),
        (x * d).sum(2).square().sum(1),
        (x, d, count),
    )


_TRANSPOSED = {"formula": "n...o,n...i->nio"}
_FROM_THE_LEFT = {"formula": "n...ot,n...it->noi"}


def _linear(
    is_weight: IsWeight, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> MatchedCall | None:
    plain = weight.dim() == 2 and (bias is None or bias.shape == weight.shape[:1])
    return MatchedCall(Linear, input, weight, bias) if plain else None


def _addmm(
    is_weight: IsWeight, input: Tensor, mat1: Tensor, mat2: Tensor, **options: Any
) -> MatchedCall | None:
    plain = input.shape == mat2.shape[1:] and not options
    return MatchedCall(Linear, mat1, mat2, input, _TRANSPOSED) if plain else None


def _matmul(
    is_weight: IsWeight, input: Tensor, other: Tensor | None = None, **others: Any
) -> MatchedCall | None:
    if is_weight(other) and other.dim() == 2 and not others:
        return MatchedCall(Linear, input, other, options=_TRANSPOSED)
    if is_weight(input) and input.dim() == 2 and not others:
        return MatchedCall(Linear, other, input, options=_FROM_THE_LEFT if other.dim() > 1 else {})
    return None


def _einsum(is_weight: IsWeight, equation: str, *operands: Any) -> MatchedCall | None:
    """Match a contraction with a weight in which each letter occurs in two of the three terms."""
    terms = re.split(",|->", equation.replace(" ", ""))
    if len(operands) != 2 or len(terms) != 3 or "->" not in equation or "." in equation:
        return None
    pairs = [*zip(terms, operands, strict=False)]
    if not is_weight(operands[1]):
        pairs.reverse()
    (of_input, input), (of_weight, weight) = pairs
    terms, sizes = (terms[2], of_input, of_weight), dict(zip(of_input, input.shape, strict=False))
    letters = "".join(terms)
    twice = any(len(set(term)) < len(term) for term in terms)
    broadcast = any(sizes.get(x, n) != n for x, n in zip(of_weight, weight.shape, strict=False))
    if twice or broadcast or any(letters.count(letter) != 2 for letter in letters):
        return None
    n = next(letter for letter in string.ascii_lowercase if letter not in letters)
    formula = "{0}{1},{0}{2}->{0}{3}".format(n, *terms)
    return MatchedCall(Linear, input, weight, options={"formula": formula})


RULES = {
    F.linear: _linear,
    **dict.fromkeys((torch.addmm, Tensor.addmm), _addmm),
    **dict.fromkeys((torch.matmul, Tensor.matmul, torch.mm, Tensor.mm), _matmul),
    torch.einsum: _einsum,
}
