"""What a forward does with a weight: the layer's activations, and the gradients at its outputs.

From these two alone follow the gradients of the samples, their norms and the sum of scaled
gradients, layer by layer (Goodfellow, arXiv:1510.01799; for sequences Li et al.,
arXiv:2110.05679; for convolutions Bu et al., arXiv:2205.10683; the sum without a second backward
Bu et al., arXiv:2210.00038).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from helpers.transforms.numbers import wide

# How many squares are added up at a time, and then these sums: long sums in float32 lose digits.
_RUN = 256

# The Gram way adds products of many signs. Where its sum is this much smaller than the sum of
# their sizes, rounding could be seen in the norm, and the gradient itself is taken.
_CANCELLED = 1 / 100

# Norms are right to their last digits, or to some digits of this, whichever is more.
SMALL = 2.0**-20


class Reducer(Protocol):
    """A linear map to fewer numbers, each of which goes to one place with a sign."""

    width: int

    def __call__(self, values: Tensor) -> Tensor:
        """Map `(..., size)` to `(..., width)`."""

    def places(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return where these coordinates go, and their signs."""


@dataclass
class LayerCall:
    """One call of a layer with weights, for all samples of a chunk.

    A rule is a subclass. Its `FORMULA` is the einsum of output gradients and activations that is
    the gradient of the weight: n counts the samples.
    """

    FORMULA: ClassVar[str]

    names: dict[str, str]  # "weight" and "bias", where wanted, to the names of parameters
    shape: torch.Size  # of the weight
    options: dict[str, Any]
    activations: Tensor | None = None  # (B, ...), what goes into the layer
    output_grads: Tensor | None = None  # (B, ...); None as long as none has arrived: it is zero

    def write(self, role: str, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, `(B, *shape)`, or add them to it."""
        raise NotImplementedError

    def gradients(self, role: str) -> Tensor:
        """Return the gradients of the samples, `(B, *shape)`."""
        gradients = self.output_grads.new_empty((len(self.output_grads), *self.shape))
        self.write(role, gradients)
        return gradients

    def reduced(self, role: str, left: Reducer | None, right: Reducer | None) -> Tensor | None:
        """Return the samples' gradients `(B, rows, columns)` with sides made smaller, unformed.

        A row is an index of the weight's first dimension. `left` maps `(..., rows)`, `right`
        `(..., columns)` to fewer; `None` leaves a side as it is. Returns `None` where only the
        gradients themselves lead there.
        """
        return None

    def squares(self, role: str, *, then_total: bool = False) -> Tensor | None:
        """Return the squared norms of the samples' gradients, `(B,)`.

        Returns `None` where the gradients themselves are the cheaper way to them, or the exact
        one. They are cheaper, too, for a sum that is asked for next, `then_total`.
        """
        raise NotImplementedError

    def total(self, role: str, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor, `(B,)`."""
        raise NotImplementedError


@dataclass
class MatchedCall:
    """A call of a function with weights, taken apart."""

    rule: type[LayerCall]
    activations: Tensor
    weights: dict[str, Tensor | None]  # by role
    run: Callable[..., Tensor]  # given the weights by role, the output that the rule describes
    options: dict[str, Any] = field(default_factory=dict)  # what the rule has to know
    finish: Callable[[Tensor], Tensor] | None = None  # from that output to the function's own


# Takes a function that tells weights that are differentiated, and the arguments of a call; `None`
# where the call is none that the rule describes.
Matcher = Callable[..., MatchedCall | None]


def squared_norms(gradients: Tensor) -> Tensor:
    """Return the squared norms of gradients `(B, *shape)`, real, in float32 at least."""
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


def weighted_sum(factors: Tensor, gradients: Tensor) -> Tensor:
    """Return the sum of gradients `(B, *shape)`, each times its factor, `(B,)`."""
    return (factors @ gradients.reshape(len(gradients), -1)).view(gradients.shape[1:])


def unless_lost(
    squares: Tensor, largest: Tensor, sides: tuple[Tensor, Tensor, int] | None = None
) -> Tensor | None:
    """Return squared norms `(B,)`, or `None` if too much of the sums they come from was lost.

    `largest`, `(B,)`, is what they would be if nothing was cancelled. Where they are products of
    two `sides`, these are the norms `(B, ...)` of both, and how many numbers the longer one has:
    the square of a small number counts as zero, and its factor on the other side may be large.
    """
    lost = squares < _CANCELLED * largest
    if sides is not None:
        x, d, count = sides
        info, norms = torch.finfo(squares.dtype), x + d
        vanished = 2 * info.tiny**0.5 * count**0.5
        if not norms.max() * norms[0].numel() * vanished < info.eps * SMALL:  # nearly always
            vanished = vanished * norms.reshape(len(norms), -1).sum(1)
            lost |= vanished > info.eps * (squares.sqrt() + SMALL)
    return None if lost.any() else squares


def write_or_add(values: Tensor, out: Tensor, add: bool) -> None:
    """Write values into a tensor, or add them to it."""
    if add:
        out += values
    else:
        out.copy_(values)
