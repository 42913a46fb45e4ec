"""Convolutions of one to three dimensions: linear in the windows of their inputs."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers.linear import Linear
from helpers.layers.use import Adapter, Call

# How many numbers the unfolded inputs of a convolution may have at a time: 8 MB in float32.
_PIECE = 2**21


class Convolution(Linear):
    """A weight `(out, in / groups, *kernel)` over the positions of an image."""

    def factors(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield windows of the inputs and gradients of the outputs; see `Linear`."""
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

    def _sizes(self) -> tuple[int, int, int]:
        maps, groups = self._maps(), self.options["groups"]
        positions = maps.shape[1] * math.prod(maps.shape[3:])
        return positions, math.prod(self.shape[1:]), self.shape[0] // groups

    def _padded(self, images: Tensor) -> Tensor:
        padding = self.options["padding"]
        if not any(padding):
            return images
        return F.pad(images, [n for width in reversed(padding) for n in (width, width)])

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

    def _ordered(self, out: Tensor) -> Tensor:
        return out.unflatten(1, (self.options["groups"], -1))

    def _windows(self, images: Tensor, kernel: torch.Size, size: torch.Size) -> Tensor:
        """Return what the kernel sees at each position: `(N, groups, in, positions)`."""
        stride, dilation = self.options["stride"], self.options["dilation"]
        images = self._padded(images).contiguous()
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


def _convolution(function: Callable[..., Tensor], dims: int) -> Adapter:
    def call(
        known: Callable[[Any], bool],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Call | None:
        if isinstance(padding, str):
            return None
        options = {
            name: [value] * dims if isinstance(value, int) else list(value) * (dims // len(value))
            for name, value in (("stride", stride), ("padding", padding), ("dilation", dilation))
        }

        def run(weight: Tensor, bias: Tensor | None) -> Tensor:
            return function(input, weight, bias, **options, groups=groups)

        weights = {"weight": weight, "bias": bias}
        return Call(Convolution, input, weights, run, {**options, "groups": groups})

    return call


CALLS: dict[Callable, Adapter] = {
    F.conv1d: _convolution(F.conv1d, 1),
    F.conv2d: _convolution(F.conv2d, 2),
    F.conv3d: _convolution(F.conv3d, 3),
}
