"""What a forward does with weights: the layer's input, and the gradient at its output.

From these two alone follow the norm of a sample's gradient and the sum of scaled gradients, layer
by layer (Goodfellow, arXiv:1510.01799; for sequences Li et al., arXiv:2110.05679; for
convolutions Bu et al., arXiv:2205.10683; the sum without a second backward Bu et al.,
arXiv:2210.00038).

A kind of use knows, for inputs `(B, ...)` and output gradients `(B, ...)` of a chunk, the
gradients of its samples, their squared norms, and their sum over samples.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# How many numbers the unfolded inputs of a convolution may have at a time: 8 MB in float32.
_PIECE = 2**21
# The Gram way adds products of many signs. Where its sum is this much smaller than the sum of
# their sizes, rounding could be seen in the norm, and the gradient itself is taken.
_CANCELLED = 1 / 100


@dataclass
class Use:
    """One call of a function with weights: linear, and the base of the others."""

    names: dict[str, str]  # "weight" and "bias", where wanted, to the names of parameters
    shape: torch.Size  # of the weight
    options: dict[str, Any] = field(default_factory=dict)
    inputs: Tensor | None = None
    grads: Tensor | None = None  # None as long as no gradient has arrived: it is zero

    def gradients(self, role: str) -> Tensor:
        """Return the gradients of the samples, `(B, *shape)`."""
        if role == "bias":
            return self._bias()
        return torch.cat([d.mT @ x for x, d in self._pieces()]).reshape(-1, *self.shape)

    def squares(self, role: str) -> Tensor:
        """Return the squared norms of the samples' gradients, `(B,)`."""
        if role == "bias":
            return squared_norms(self._bias())
        return torch.cat([_squares(x, d) for x, d in self._pieces()])

    def total(self, role: str, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        if role == "bias":
            return torch.einsum("b,bo->o", factors, self._bias())
        grads = self.grads * factors.view(-1, *(1,) * (self.grads.dim() - 1))
        return grads.flatten(0, -2).mT @ self.inputs.flatten(0, -2)

    def _bias(self) -> Tensor:
        return self.grads.flatten(1, -2).sum(1) if self.grads.dim() > 2 else self.grads

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs `(b, groups, T, in)` and output gradients `(b, groups, T, out)`."""
        size = len(self.inputs)
        yield tuple(
            t.reshape(size, 1, math.prod(t.shape[1:-1]), t.shape[-1])
            for t in (self.inputs, self.grads)
        )


class Convolution(Use):
    """A convolution of one to three dimensions: linear in the windows of its input."""

    def total(self, role: str, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        if role == "bias":
            return torch.einsum("b,bo->o", factors, self._bias())
        images, grads = self._images(), self._maps() * factors.view(-1, 1, *(1,) * self._dims, 1)
        return torch.ops.aten.convolution_backward(
            grads.flatten(0, 1),
            images.flatten(0, 1),
            images.new_empty(self.shape),
            None,
            *(self.options[name] for name in ("stride", "padding", "dilation")),
            False,
            [0] * self._dims,
            self.options["groups"],
            [False, True, False],
        )[1]

    @property
    def _dims(self) -> int:
        return len(self.shape) - 2

    def _images(self) -> Tensor:
        """Return the inputs `(B, N, channels, *size)`: a sample may be several images."""
        return self.inputs if self.inputs.dim() == self._dims + 3 else self.inputs.unsqueeze(1)

    def _maps(self) -> Tensor:
        return self.grads if self.grads.dim() == self._dims + 3 else self.grads.unsqueeze(1)

    def _bias(self) -> Tensor:
        return self._maps().flatten(3).sum((1, 3))

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        groups, kernel = self.options["groups"], self.shape[2:]
        images, maps = self._images(), self._maps()
        positions = math.prod(maps.shape[3:]) * images.shape[1]
        step = max(1, _PIECE // max(1, positions * math.prod(self.shape[1:]) * groups))
        for x, d in zip(images.split(step), maps.split(step), strict=True):
            count = len(x)
            windows = self._windows(x.flatten(0, 1), kernel, d.shape[3:])
            # (b * N, groups, in, L) to (b, groups, N * L, in), without a copy where N is 1
            windows, d = (
                t.unflatten(0, (count, -1)).movedim(1, 2).movedim(3, -1).flatten(2, 3)
                for t in (
                    windows,
                    d.flatten(0, 1).flatten(2).unflatten(1, (groups, -1)),
                )
            )
            yield windows, d

    def _windows(self, images: Tensor, kernel: torch.Size, size: torch.Size) -> Tensor:
        """Return what the kernel sees at each position: `(N, groups, in, positions)`."""
        padding, stride, dilation = (
            self.options[name] for name in ("padding", "stride", "dilation")
        )
        if any(padding):
            images = F.pad(images, [n for width in reversed(padding) for n in (width, width)])
        images = images.contiguous()
        strides = images.stride()
        view = images.as_strided(
            (*images.shape[:2], *kernel, *size),
            (
                *strides[:2],
                *(s * n for s, n in zip(strides[2:], dilation, strict=True)),
                *(s * n for s, n in zip(strides[2:], stride, strict=True)),
            ),
        )
        groups = self.options["groups"]
        return view.reshape(len(images), groups, self.shape[1] * kernel.numel(), size.numel())


class Embedding(Use):
    """A table of rows, of which a sample reads some."""

    def gradients(self, role: str) -> Tensor:
        """Return the gradients of the samples, `(B, *shape)`."""
        index, rows = self._rows()
        flat = index + self.shape[0] * torch.arange(len(index), device=index.device)[:, None]
        table = rows.new_zeros(len(index) * self.shape[0], self.shape[1])
        table.index_add_(0, flat.flatten(), rows.flatten(0, 1))
        return table.view(len(index), *self.shape)

    def squares(self, role: str) -> Tensor:
        """Return the squared norms of the samples' gradients, `(B,)`."""
        index, rows = self._rows()
        if rows.shape[1] ** 2 > self.shape[0]:
            return squared_norms(self.gradients(role))
        same = index[:, :, None] == index[:, None, :]
        sizes = rows.norm(dim=2)
        return _checked(
            ((rows @ rows.mT) * same).sum((1, 2)),
            (sizes[:, :, None] * sizes[:, None, :] * same).sum((1, 2)),
            lambda: squared_norms(self.gradients(role)),
        )

    def total(self, role: str, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        index, rows = self._rows()
        table = rows.new_zeros(self.shape)
        rows = rows * factors[:, None, None]
        return table.index_add_(0, index.flatten(), rows.flatten(0, 1))

    def _rows(self) -> tuple[Tensor, Tensor]:
        """Return the indices `(B, T)` and the gradients `(B, T, columns)` of the rows read."""
        index, rows = self.inputs.flatten(1), self.grads.flatten(1, -2)
        padding = self.options["padding"]
        if padding is not None:
            rows = rows * (index != padding % self.shape[0])[:, :, None]
        return index, rows


class Normalisation(Use):
    """A scale and a shift of normalised values."""

    def gradients(self, role: str) -> Tensor:
        """Return the gradients of the samples, `(B, *shape)`."""
        grads = self.grads
        if role == "weight":
            grads = grads * self.options["normalise"](self.inputs)
        axis = self.options["axis"]
        if axis is None:  # the scale lies on the last dimensions
            lead = grads.dim() - len(self.shape)
            return grads.flatten(1, lead - 1).sum(1) if lead > 1 else grads
        return grads.movedim(axis, -1).flatten(1, -2).sum(1)

    def squares(self, role: str) -> Tensor:
        """Return the squared norms of the samples' gradients, `(B,)`."""
        return squared_norms(self.gradients(role))

    def total(self, role: str, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        return torch.einsum("b,b...->...", factors, self.gradients(role))


def squared_norms(gradients: Tensor) -> Tensor:
    """Return the squared norms of gradients `(B, *shape)`, in float32 at least."""
    rows = gradients.flatten(1) if gradients.dim() > 1 else gradients[:, None]
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return torch.einsum("bp,bp->b", rows, rows)


def _squares(inputs: Tensor, grads: Tensor) -> Tensor:
    """Return squared norms of `grads^T inputs`, given `(b, groups, T, in)`, `(b, groups, T, out)`.

    The norm of a sum of T outer products, by the products themselves or by the T x T products of
    their factors (Gram matrices), whichever takes fewer multiplications.
    """
    positions, width, outputs = *inputs.shape[2:], grads.shape[3]
    wide = torch.promote_types(grads.dtype, torch.float32)
    inputs, grads = inputs.to(wide), grads.to(wide)
    if positions == 1:
        return (inputs.square().sum((2, 3)) * grads.square().sum((2, 3))).sum(1)
    if positions * (width + outputs) > width * outputs:
        return squared_norms(grads.mT @ inputs)
    return _checked(
        ((inputs @ inputs.mT) * (grads @ grads.mT)).sum((1, 2, 3)),
        (inputs.norm(dim=3) * grads.norm(dim=3)).sum(2).square().sum(1),
        lambda: squared_norms(grads.mT @ inputs),
    )


def _checked(squares: Tensor, largest: Tensor, exact: Callable[[], Tensor]) -> Tensor:
    """Return squared norms, or what `exact` gives if too much of them was cancelled."""
    if (squares < _CANCELLED * largest).any():
        return exact()
    return squares
