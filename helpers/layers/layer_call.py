"""How a forward pass uses a parameter: a layer's activations and output gradients.

They determine the samples' gradients, their norms and the sum of scaled gradients (Goodfellow,
arXiv:1510.01799; sequences: Li et al., arXiv:2110.05679; convolutions: Bu et al., arXiv:2205.10683;
the sum without a second backward pass: Bu et al., arXiv:2210.00038).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from helpers.numbers import wide

# Squares are added up in groups of this size, since long sums in float32 lose digits.
_RUN = 256

# Gram matrices add products of both signs. If the sum is this much smaller than the sum of absolute
# values, rounding could show in the norm, and the gradient itself is used.
_CANCELLED = 1 / 100

# Norms are accurate to a few eps, relative to themselves or to this if it is larger.
SMALL = 2.0**-20


@dataclass
class LayerCall:
    """One call of a layer with one parameter, for all samples of a chunk.

    A rule is a subclass. Its `FORMULA` is the einsum of output gradients and activations, in this
    order, that gives the samples' gradients; its first letter is the sample. Rules override those
    methods for which the einsum takes too much memory or time.
    """

    FORMULA: ClassVar[str]

    shape: torch.Size  # of the parameter
    options: dict[str, Any]  # a "formula" here replaces `FORMULA`
    activations: Tensor | None = None  # (B, ...), what goes into the layer
    output_grads: Tensor | None = None  # (B, ...); None until one arrives, and means zero

    @property
    def formula(self) -> str:
        """The einsum of this call."""
        return self.options.get("formula", self.FORMULA)

    def operands(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield the formula's operands, a few samples `(b, ...)` at a time."""
        if self.activations is None:
            yield (self.output_grads,)
        else:
            yield self.output_grads, self.activations

    def gradients(self) -> Tensor:
        """Return the gradients of the samples, `(B, *shape)`."""
        gradients = self.output_grads.new_empty((len(self.output_grads), *self.shape))
        self.write(gradients)
        return gradients

    def write(self, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, `(B, *shape)`, or add them to it."""
        start = 0
        for operands in self.operands():
            rows = out[start : start + len(operands[0])]
            values = torch.einsum(self.formula, *operands).reshape(rows.shape)
            rows.add_(values) if add else rows.copy_(values)
            start += len(rows)

    def squares(self, *, then_total: bool = False) -> "Squares | None":
        """Return squared norms `(B,)`, or None if dense gradients are cheaper."""
        # With `then_total`, a weighted sum follows, which can reuse dense gradients.
        return None

    def total(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor, `(B,)`."""
        return (factors @ self.gradients().reshape(len(factors), -1)).view(self.shape)

    def reduced(self, left: Any, right: Any) -> Tensor | None:
        """Project the gradients `(B, rows, columns)` without forming them, or return None."""
        # `left`, a `Sketch` of `helpers.projection`, maps (..., rows) to fewer numbers, `right`
        # (..., columns); None leaves a side as it is. Rows: the parameter's first dimension.
        return None


class Bias(LayerCall):
    """A parameter added to the outputs along their last dimension."""

    FORMULA = "n...o->no"

    def gradients(self) -> Tensor:
        """Return the gradients of the samples, `(B, *shape)`, possibly a view."""
        grads = self.output_grads
        if grads.numel() == len(grads) * self.shape.numel():
            return grads.reshape(len(grads), *self.shape)
        return torch.einsum(self.formula, grads)

    def write(self, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, `(B, *shape)`, or add them to it."""
        out.add_(self.gradients()) if add else out.copy_(self.gradients())


class Dense(Bias):
    """Dense per-sample gradients where no rule applies, as `output_grads`."""

    FORMULA = "n...->n..."


def dense(gradients: Tensor) -> Dense:
    """Wrap gradients `(B, *shape)` as a call."""
    return Dense(gradients.shape[1:], {}, output_grads=gradients)


@dataclass
class MatchedCall:
    """The parts of a call of a function with weights."""

    rule: type[LayerCall]  # of the weight
    activations: Tensor
    weight: Tensor
    bias: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)  # what the rule has to know
    bias_formula: str = Bias.FORMULA


IsWeight = Callable[[Any], bool]  # is this a differentiated weight?
# Takes such a function and the arguments of a call; `None` where the rule does not describe it.
Matcher = Callable[..., MatchedCall | None]


def squared_norms(gradients: Tensor) -> Tensor:
    """Return the squared norms of gradients `(B, *shape)`, in float32 or wider."""
    if gradients.is_complex():
        gradients = torch.view_as_real(gradients.resolve_conj())
    rows = gradients.flatten(1) if gradients.dim() > 1 else gradients[:, None]
    dtype = wide(rows.dtype)
    even = rows.shape[1] - rows.shape[1] % _RUN
    squares = torch.linalg.vector_norm(rows[:, even:], dim=1, dtype=dtype).square()
    if even:
        runs = rows[:, :even].unflatten(1, (-1, _RUN))
        squares += torch.linalg.vector_norm(runs, dim=2, dtype=dtype).square().sum(1)
    return squares


@dataclass
class Squares:
    """Squared norms of a layer's gradients, and whether they can be trusted.

    Attributes:
        values: `(B,)`.
        lost: `()`, boolean: whether cancellation or underflow spoiled one of them. To read it, the
            CPU has to wait for a GPU, so the flags of all layers are read at once.
    """

    values: Tensor
    lost: Tensor


def checked_squares(
    squares: Tensor, largest: Tensor, side_norms: Tensor | None = None, length: int = 0
) -> Squares:
    """Tell of squared norms whether cancellation or underflow spoiled one of them.

    The gradients are sums of outer products `d_t x_t^T`, over positions t, with output gradients d
    and inputs x.

    Args:
        squares: `(B,)`, the squared norms as computed from products of x and of d.
        largest: `(B,)`, what they would be if nothing was cancelled.
        side_norms: `(B, ...)`, the sums `|x_t| + |d_t|`; `None` where x are zeros and ones.
        length: How many numbers the longer of x_t and d_t has.
    """
    # Cancellation. The squared norm is the sum over s and t of (x_s x_t) (d_s d_t), products of
    # inner products. Rounding moves a term by a few eps of |x_s| |x_t| |d_s| |d_t|, and so the sum
    # by a few eps of (sum |x_t| |d_t|)^2, which is `largest`. That is little beside the sum, unless
    # it is much smaller.
    lost = squares < _CANCELLED * largest

    # Underflow. A product of two numbers counts as zero if it is below `tiny`. So x_s x_t, a sum of
    # `length` products, lacks at most length * tiny. Its factor d_s d_t may be large, and therefore
    # the squared norm lacks at most
    #
    #     length * tiny * (sum |d_t|)^2  and, of the other side,  length * tiny * (sum |x_t|)^2.
    #
    # Both together are at most length * tiny * S^2, with S = sum (|x_t| + |d_t|). A norm whose
    # square lacks e^2 lacks at most e, which is sqrt(length * tiny) * S here. It is doubled below,
    # since the norms in S lack something, too. Last, the products of x_s x_t and d_s d_t lack at
    # most tiny each, which is nothing beside SMALL.
    if side_norms is not None:
        info = torch.finfo(squares.dtype)
        missing_per_norm = 2 * info.tiny**0.5 * length**0.5
        missing = missing_per_norm * side_norms.reshape(len(side_norms), -1).sum(1)
        # A norm may lack eps times itself, or times SMALL.
        lost |= missing > info.eps * (squares.sqrt() + SMALL)
    return Squares(squares, lost.any())
