"""Linear layers, by whatever function: `linear`, `addmm`, `matmul`, or `einsum` with a weight."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers.layer_call import (
    LayerCall,
    MatchedCall,
    Matcher,
    Reducer,
    squared_norms,
    unless_lost,
    weighted_sum,
    write_or_add,
)

# Gram matrices are the faster way to norms where they take less than this of the multiplications
# of the outer products, as measured at 8 to 65 positions and 32 to 1000 inputs and outputs.
_GRAM, _GRAM_THEN_TOTAL = 0.75, 0.4

# From this size on, a matrix that is one outer product is written faster by a matrix product, which
# takes several rows at a time, than by a product of each two numbers.
_LARGE = 2**18


class Linear(LayerCall):
    """A weight times inputs: a sum of outer products, and the base of what is one in some way.

    `options["order"]` are the dimensions of the weight, those of the outputs first, and
    `options["outputs"]` is the number of these.
    """

    FORMULA = "n...o,n...i->noi"

    def factors(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs `(b, groups, T, in)` and output gradients `(b, groups, T, out)`."""
        size = len(self.activations)
        yield tuple(
            t.reshape(size, 1, math.prod(t.shape[1:-1]), t.shape[-1])
            for t in (self.activations, self.output_grads)
        )

    def write(self, role: str, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, `(B, *shape)`, or add them to it."""
        if role == "bias":
            write_or_add(self._bias(), out, add)
            return
        start = 0
        for x, d in self.factors():
            _add_outer(d, x, self._ordered(out[start : start + len(x)]), add)
            start += len(x)

    def gradients(self, role: str) -> Tensor:
        """Return the gradients of the samples, `(B, *shape)`."""
        return self._bias() if role == "bias" else super().gradients(role)

    def reduced(self, role: str, left: Reducer | None, right: Reducer | None) -> Tensor | None:
        """Return the samples' gradients with both sides made smaller; see `LayerCall`."""
        plain = tuple(range(len(self.shape)))
        order = self.options.get("order", plain)
        swapped = order == (1, 0)
        if role == "bias" or self.options.get("outputs", 1) > 1 or not (swapped or order == plain):
            return None
        pieces = []
        for x, d in self.factors():
            if d.shape[1] > 1:
                return None  # groups, of which each has but a part of the rows
            rows, columns = (x, d) if swapped else (d, x)
            rows, columns = (
                side.squeeze(1) if reducer is None else reducer(side.squeeze(1))
                for side, reducer in ((rows, left), (columns, right))
            )
            dtype = torch.promote_types(rows.dtype, columns.dtype)
            pieces.append(rows.to(dtype).mT @ columns.to(dtype))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def squares(self, role: str, *, then_total: bool = False) -> Tensor | None:
        """Return the squared norms of the samples' gradients, `(B,)`; see `LayerCall`."""
        if role == "bias":
            return None
        positions, inputs, outputs = self._sizes()
        share = _GRAM_THEN_TOTAL if then_total else _GRAM
        if positions > 1 and positions * (inputs + outputs) > share * inputs * outputs:
            return None
        pieces = []
        for x, d in self.factors():
            squares = _squares(x, d)
            if squares is None:
                return None
            pieces.append(squares)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def total(self, role: str, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        if role == "bias":
            return weighted_sum(factors, self._bias())
        grads = self.output_grads * factors.view(-1, *(1,) * (self.output_grads.dim() - 1))
        total = grads.flatten(0, -2).mT @ self.activations.flatten(0, -2)
        order = self.options["order"]
        sizes = [self.shape[dim] for dim in order]
        return total.view(sizes).permute([order.index(dim) for dim in range(len(order))])

    def _sizes(self) -> tuple[int, int, int]:
        """Return T, and how many inputs and outputs a group has."""
        return (
            math.prod(self.activations.shape[1:-1]),
            self.activations.shape[-1],
            self.output_grads.shape[-1],
        )

    def _bias(self) -> Tensor:
        grads = self.output_grads
        return grads.flatten(1, -2).sum(1) if grads.dim() > 2 else grads

    def _ordered(self, out: Tensor) -> Tensor:
        """Return `out`, `(b, *shape)`, as `(b, groups, *outputs, *inputs)`."""
        return out.permute(0, *(1 + dim for dim in self.options["order"])).unsqueeze(1)


def _add_outer(grads: Tensor, inputs: Tensor, out: Tensor, add: bool) -> None:
    """Write `grads^T inputs` into `out`, `(b, groups, ...)`, or add it to it."""
    grads, inputs = grads.flatten(0, 1).mT, inputs.flatten(0, 1)
    try:
        matrices = out.view(len(grads), grads.shape[1], inputs.shape[2])
    except RuntimeError:  # its dimensions do not lie side by side in memory
        write_or_add((grads @ inputs).view(out.shape), out, add)
        return
    if grads.shape[2] > 1 or matrices[:1].numel() >= _LARGE:
        if add:
            matrices.baddbmm_(grads, inputs)
        else:
            torch.bmm(grads, inputs, out=matrices)
    elif add:
        matrices.addcmul_(grads, inputs)
    else:
        torch.mul(grads, inputs, out=matrices)


def _squares(inputs: Tensor, grads: Tensor) -> Tensor | None:
    """Return squared norms of `grads^T inputs` by T x T products of their rows (Gram matrices)."""
    count = max(inputs.shape[3], grads.shape[3])
    if inputs.shape[1:3].numel() == 1:
        x, d = squared_norms(inputs), squared_norms(grads)
        return unless_lost(x * d, x * d, (x.sqrt(), d.sqrt(), count))
    x, d = inputs.norm(dim=3), grads.norm(dim=3)
    return unless_lost(
        ((inputs @ inputs.mT) * (grads @ grads.mT)).sum((1, 2, 3)),
        (x * d).sum(2).square().sum(1),
        (x, d, count),
    )


IsWeight = Callable[[Any], bool]
_PLAIN, _TRANSPOSED = {"order": (0, 1), "outputs": 1}, {"order": (1, 0), "outputs": 1}


def _linear(
    is_weight: IsWeight, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> MatchedCall | None:
    if weight.dim() != 2:
        return None

    def run(weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    return MatchedCall(Linear, input, {"weight": weight, "bias": bias}, run, _PLAIN)


def _addmm(
    is_weight: IsWeight, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> MatchedCall | None:
    if not is_weight(mat2) or input.shape != mat2.shape[1:] or (beta, alpha) != (1, 1):
        return None

    def run(weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(mat1, weight.mT, bias)

    return MatchedCall(Linear, mat1, {"weight": mat2, "bias": input}, run, _TRANSPOSED)


def _matmul(is_weight: IsWeight, input: Tensor, other: Tensor) -> MatchedCall | None:
    if is_weight(other) and other.dim() == 2:
        weights = {"weight": other}
        return MatchedCall(
            Linear, input, weights, lambda weight: F.linear(input, weight.mT), _TRANSPOSED
        )
    if is_weight(input) and input.dim() == 2:
        columns = other.mT if other.dim() > 1 else other
        return MatchedCall(
            Linear,
            columns,
            {"weight": input},
            lambda weight: F.linear(columns, weight),
            _PLAIN,
            (lambda output: output.mT) if other.dim() > 1 else None,
        )
    return None


def _einsum(is_weight: IsWeight, equation: str, *operands: Any) -> MatchedCall | None:
    """Take apart a contraction of inputs with a weight that share no dimension of the result."""
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    terms = equation.replace(" ", "").split("->")
    if len(operands) != 2 or len(terms) != 2 or "." in equation:
        return None
    pairs = list(zip(terms[0].split(","), operands, strict=True))
    if not is_weight(operands[1]):
        pairs.reverse()
    (of_input, input), (of_weight, weight) = pairs
    of_output = terms[1]
    outputs = [letter for letter in of_weight if letter not in of_input]
    summed = [letter for letter in of_weight if letter in of_input]
    kept = [letter for letter in of_input if letter not in of_weight]
    if (
        not is_weight(weight)
        or not outputs
        or not summed
        or any(len(set(term)) < len(term) for term in (of_input, of_weight, of_output))
        or sorted(of_output) != sorted(kept + outputs)
    ):
        return None
    order = tuple(of_weight.index(letter) for letter in outputs + summed)
    sizes = [weight.shape[dim] for dim in order[: len(outputs)]]
    rows = input.permute([of_input.index(letter) for letter in kept + summed])
    rows = rows.flatten(len(kept))

    def run(weight: Tensor) -> Tensor:
        return F.linear(rows, weight.permute(order).flatten(0, len(outputs) - 1).flatten(1))

    def finish(output: Tensor) -> Tensor:
        letters = kept + outputs
        return output.unflatten(-1, sizes).permute([letters.index(x) for x in of_output])

    options = {"order": order, "outputs": len(outputs)}
    return MatchedCall(Linear, rows, {"weight": weight}, run, options, finish)


RULES: dict[Callable, Matcher] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    Tensor.addmm: _addmm,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.mm: _matmul,
    torch.einsum: _einsum,
}
