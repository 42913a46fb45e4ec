"""Linear layers: `linear`, `addmm`, `matmul`, or `einsum` with a weight."""

import functools
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers.layer_call import (
    IsWeight,
    LayerCall,
    MatchedCall,
    Squares,
    checked_squares,
    squared_norms,
)

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
        of_grads, of_inputs, _ = self._terms()
        for grads, inputs in self.operands():
            yield _matrices(grads, of_grads), _matrices(inputs, of_inputs)

    def write(self, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples straight into `out`."""
        start = 0
        for grads, inputs in self.matrices():
            rows = self._ordered(out[start : start + len(grads)])
            # Each group of each sample is a product of its own: (out, T) times (T, in).
            _add_outer(grads.flatten(0, 1).mT, inputs.flatten(0, 1), rows, add)
            start += len(grads)

    def squares(self, *, then_total: bool = False) -> Squares | None:
        """Return squared norms from T x T products; see `LayerCall`."""
        positions, inputs, outputs = self._sizes()
        # Gram matrices take T * T * (in + out) multiplications, the gradient itself T * in * out;
        # both are divided by T here. A single position needs only the norms of two vectors.
        share = _GRAM_THEN_TOTAL if then_total else _GRAM
        if positions > 1 and positions * (inputs + outputs) > share * inputs * outputs:
            return None
        pieces = []
        for grads, values in self.matrices():
            pieces.append(_squares(grads, values))
        if len(pieces) == 1:
            return pieces[0]
        values = torch.cat([piece.values for piece in pieces])
        return Squares(values, torch.stack([piece.lost for piece in pieces]).any())

    def total(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor, as one product."""
        # All samples are in one piece: convolutions, which have several, override this.
        [(grads, inputs)] = self.matrices()
        grads = grads * factors.view(-1, 1, 1, 1)
        # A sum over samples is like one over positions: both become the rows of one product.
        total = grads.flatten(0, 2).mT @ inputs.flatten(0, 2)  # (outputs, inputs)
        # Put the dimensions back into the order of the weight, which has none for the samples.
        _, _, weight = self._terms()
        order = [dim - 1 for dim in weight.order[1:]]
        sizes = [self.shape[dim] for dim in order]
        places = [order.index(dim) for dim in range(len(order))]
        return total.view(sizes).permute(places)

    def reduced(self, left: Any, right: Any) -> Tensor | None:
        """Project the gradients without forming them; see `LayerCall`."""
        _, _, weight = self._terms()
        # The weight's first dimension counts the rows. Outputs or inputs, they must have no other
        # dimension.
        first = min(weight.outputs + weight.inputs)
        if weight.outputs != [first] and weight.inputs != [first]:
            return None
        pieces = []
        for grads, inputs in self.matrices():
            if grads.shape[1] > 1:
                return None  # each group has part of the rows
            rows, columns = (grads, inputs) if first in weight.outputs else (inputs, grads)
            rows, columns = rows.squeeze(1), columns.squeeze(1)
            if left is not None:
                rows = left(rows)
            if right is not None:
                columns = right(columns)
            dtype = torch.promote_types(rows.dtype, columns.dtype)
            pieces.append(rows.to(dtype).mT @ columns.to(dtype))
        return torch.cat(pieces)

    def _sizes(self) -> tuple[int, int, int]:
        """Return T and the numbers of inputs and outputs of a group."""
        of_grads, of_inputs, _ = self._terms()
        positions = _size(self.output_grads, of_grads.positions)
        inputs = _size(self.activations, of_inputs.inputs)
        outputs = _size(self.output_grads, of_grads.outputs)
        return positions, inputs, outputs

    def _ordered(self, out: Tensor) -> Tensor:
        """Return `out`, `(b, *shape)`, as `(b, *groups, *outputs, *inputs)`."""
        _, _, weight = self._terms()
        return out.permute(weight.order)

    def _terms(self) -> tuple["_Term", "_Term", "_Term"]:
        return _terms(self.formula, self.output_grads.dim())


@dataclass(frozen=True)
class _Term:
    """One of a formula's three tensors: the numbers of its dimensions, by what they are.

    Dimension 0 is that of the samples. The others follow from which tensors share their letters.
    """

    groups: list[int]  # in all three: each index has a product of its own
    positions: list[int]  # in gradients and activations, not in the weight: summed over
    outputs: list[int]  # in gradients and weight
    inputs: list[int]  # in activations and weight
    order: list[int]  # 0, then all of the above


@functools.cache
def _terms(formula: str, dims: int) -> tuple[_Term, _Term, _Term]:
    """Describe the output gradients, which have `dims` dimensions, the activations, and the weight.

    For example, "n...o,n...i->noi" in three dimensions is "nAo,nAi->noi": A is a position.
    """
    first = formula.partition(",")[0]
    dots = dims - len(first.replace("...", ""))  # how many dimensions "..." stands for
    # Capital letters, since rules use small ones.
    formula = formula.replace("...", string.ascii_uppercase[:dots])
    grads, activations, weight = re.split(",|->", formula)

    groups, outputs, inputs = "", "", ""
    for letter in weight[1:]:  # after that of the samples
        if letter not in activations:
            outputs += letter
        elif letter not in grads:
            inputs += letter
        else:
            groups += letter
    positions = ""
    for letter in grads:
        if letter not in weight:
            positions += letter

    def describe(term: str) -> _Term:
        return _Term(
            groups=_find(groups, term),
            positions=_find(positions, term),
            outputs=_find(outputs, term),
            inputs=_find(inputs, term),
            order=_find(term[0] + groups + positions + outputs + inputs, term),
        )

    return describe(grads), describe(activations), describe(weight)


def _find(letters: str, term: str) -> list[int]:
    """Return which dimensions of a term these letters are, without letters that it lacks."""
    return [term.index(letter) for letter in letters if letter in term]


def _size(tensor: Tensor, dims: list[int]) -> int:
    """Return how many indices these dimensions have together."""
    size = 1
    for dim in dims:
        size *= tensor.shape[dim]
    return size


def _matrices(tensor: Tensor, term: _Term) -> Tensor:
    """Return output gradients or activations as `(b, groups, T, side)`."""
    groups, positions = _size(tensor, term.groups), _size(tensor, term.positions)
    side = _size(tensor, term.outputs or term.inputs)  # it has one of both
    return tensor.permute(term.order).reshape(len(tensor), groups, positions, side)


def _add_outer(grads: Tensor, inputs: Tensor, out: Tensor, add: bool) -> None:
    """Write the products `grads @ inputs` into `out`, `(b, *groups, ...)`, or add them to it."""
    try:
        matrices = out.view(len(grads), grads.shape[1], inputs.shape[2])
    except RuntimeError:  # its dimensions do not lie side by side in memory
        values = (grads @ inputs).view(out.shape)
        out.add_(values) if add else out.copy_(values)
        return
    # An outer product has one position; of none, the sum is zero.
    if grads.shape[2] != 1 or matrices[:1].numel() >= _LARGE:
        matrices.baddbmm_(grads, inputs, beta=int(add))
    elif add:
        matrices.addcmul_(grads, inputs)
    else:
        torch.mul(grads, inputs, out=matrices)


def _squares(grads: Tensor, inputs: Tensor) -> Squares:
    """Return squared norms of `grads^T inputs`, from output gradients and inputs `(b, G, T, ...)`.

    The gradient of a group is `sum over t of d_t x_t^T`. Its squared norm is the sum over s and t
    of `(x_s x_t) (d_s d_t)`, with the inner products that two T x T Gram matrices hold.
    """
    length = max(inputs.shape[3], grads.shape[3])
    if inputs.shape[1] == inputs.shape[2] == 1:
        # One outer product d x^T, whose norm is |x| |d|: nothing can cancel.
        x, d = squared_norms(inputs), squared_norms(grads)
        squares = x * d
        return checked_squares(squares, squares, x.sqrt() + d.sqrt(), length)
    gram_inputs, gram_grads = inputs @ inputs.mT, grads @ grads.mT  # (b, G, T, T)
    squares = (gram_inputs * gram_grads).sum((1, 2, 3))
    x, d = inputs.norm(dim=3), grads.norm(dim=3)  # (b, G, T)
    # The norm would be largest if all outer products of a group pointed in one direction.
    largest = (x * d).sum(2).square().sum(1)
    return checked_squares(squares, largest, x + d, length)


# A weight `(in, out)` to the right of its inputs, and one `(out, in)` to the left of a matrix.
_TRANSPOSED = {"formula": "n...o,n...i->nio"}
_FROM_THE_LEFT = {"formula": "n...ot,n...it->noi"}


def _linear(
    is_weight: IsWeight, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> MatchedCall | None:
    """Match `F.linear`, unless a bias is broadcast."""
    plain = weight.dim() == 2 and (bias is None or bias.shape == weight.shape[:1])
    return MatchedCall(Linear, input, weight, bias) if plain else None


def _addmm(
    is_weight: IsWeight, input: Tensor, mat1: Tensor, mat2: Tensor, **options: Any
) -> MatchedCall | None:
    """Match `bias + inputs @ weight`, unless a bias is broadcast, or one of both is scaled."""
    plain = input.shape == mat2.shape[1:] and not options
    return MatchedCall(Linear, mat1, mat2, input, _TRANSPOSED) if plain else None


def _matmul(
    is_weight: IsWeight, input: Tensor, other: Tensor | None = None, **others: Any
) -> MatchedCall | None:
    """Match `inputs @ weight`, `weight @ inputs` or `weight @ input`, if the weight is a matrix."""
    if others:
        return None
    if is_weight(other) and other.dim() == 2:
        return MatchedCall(Linear, input, other, options=_TRANSPOSED)
    if is_weight(input) and input.dim() == 2:
        options = _FROM_THE_LEFT if other.dim() > 1 else {}
        return MatchedCall(Linear, other, input, options=options)
    return None


def _einsum(is_weight: IsWeight, equation: str, *operands: Any) -> MatchedCall | None:
    """Match a contraction with a weight in which each letter occurs in two of the three terms."""
    terms = re.split(",|->", equation.replace(" ", ""))
    if len(operands) != 2 or len(terms) != 3 or "->" not in equation or "." in equation:
        return None
    first, second, of_output = terms
    if is_weight(operands[1]):
        input, weight = operands
        of_input, of_weight = first, second
    else:
        weight, input = operands
        of_weight, of_input = first, second

    letters = of_output + of_input + of_weight
    for letter in letters:
        # Once, it is summed over alone; three times, the product is one of batches.
        if letters.count(letter) != 2:
            return None
    for term in (of_output, of_input, of_weight):
        if len(set(term)) < len(term):  # a diagonal
            return None
    sizes = dict(zip(of_input, input.shape, strict=False))
    for letter, size in zip(of_weight, weight.shape, strict=False):
        if sizes.get(letter, size) != size:  # one of both is broadcast
            return None

    # The formula of the gradient needs one more letter, for the samples.
    n = min(set(string.ascii_lowercase).difference(letters))
    formula = f"{n}{of_output},{n}{of_input}->{n}{of_weight}"
    return MatchedCall(Linear, input, weight, options={"formula": formula})


RULES = {
    F.linear: _linear,
    torch.addmm: _addmm,
    Tensor.addmm: _addmm,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.mm: _matmul,
    torch.einsum: _einsum,
}
