"""Convolutions of one to three dimensions, transposed too: linear in the windows of an image."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers.layer_call import MatchedCall, Matcher, write_or_add
from helpers.layers.linear import Linear

# How many numbers of inputs and gradients are taken at a time where nothing is unfolded: they stay
# in the cache of a core, where each is read once for each place of the kernel.
_CACHED = 2**18

# With fewer channels than this, products of one place of the kernel are too small to be fast; with
# fewer positions for each channel of the outputs, copies of windows take less.
_CHANNELS, _POSITIONS = 8, 24

# How many numbers the unfolded inputs of a convolution may have at a time: 4 MB in float32.
_PIECE = 2**20


class Convolution(Linear):
    """A weight `(out, in / groups, *kernel)` over the positions of an image.

    Unfolded into windows `(n, groups, positions, in * kernel)`, a convolution is linear.
    """

    FORMULA = "ngto,ngti->ngoi"

    def operands(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield gradients of the outputs and windows of the inputs."""
        groups, kernel = self.options["groups"], self.shape[2:]
        images, maps = self._images(), self._maps()
        positions = math.prod(maps.shape[3:]) * images.shape[1]
        step = max(1, _PIECE // max(1, positions * math.prod(self.shape[1:]) * groups))
        for x, d in zip(images.split(step), maps.split(step), strict=True):
            windows = self._windows(x.flatten(0, 1), kernel, d.shape[3:])
            d = d.flatten(0, 1).flatten(2).unflatten(1, (groups, -1))
            # (b * N, groups, n, L) to (b, groups, N * L, n), without a copy where N is 1
            yield tuple(
                each.unflatten(0, (len(x), -1)).movedim(1, 2).movedim(3, -1).flatten(2, 3)
                for each in (d, windows)
            )

    def write(self, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, without windows where that is cheaper."""
        if not self._slides():
            super().write(out, add=add)
            return
        groups, sizes = self.options["groups"], self._maps().shape[3:]
        images, maps = self._padded(self._images().squeeze(1)), self._maps().squeeze(1)
        step = max(1, _CACHED // (math.prod(images.shape[1:]) + math.prod(maps.shape[1:]) + 1))
        gaps = [*zip(sizes, self.options["stride"], self.options["dilation"], strict=True)]
        for x, d, rows in zip(*(each.split(step) for each in (images, maps, out)), strict=True):
            d = d.flatten(2).unflatten(1, (groups, -1))
            parts = []
            for place in itertools.product(*map(range, self.shape[2:])):
                seen = (
                    slice(k * dilation, k * dilation + (size - 1) * stride + 1, stride)
                    for k, (size, stride, dilation) in zip(place, gaps, strict=True)
                )
                parts.append(d @ x[(..., *seen)].flatten(2).unflatten(1, (groups, -1)).mT)
            write_or_add(torch.stack(parts, -1).view(rows.shape), rows, add)

    def _slides(self) -> bool:
        """Say whether to take one place of the kernel after the other is the cheaper way."""
        positions, _, outputs = self._sizes()
        many = self.shape[1] >= _CHANNELS and positions >= _POSITIONS * outputs
        return many and self._images().shape[1] == 1

    def total(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor, without windows."""
        images, grads, dims = self._images(), self._maps(), len(self.shape) - 2
        grads = grads * factors.view(-1, *(1,) * (dims + 2))
        sides = grads.flatten(0, 1), images.flatten(0, 1), images.new_empty(self.shape), None
        options = [self.options[name] for name in ("stride", "padding", "dilation")]
        rest = False, [0] * dims, self.options["groups"], [False, True, False]
        return torch.ops.aten.convolution_backward(*sides, *options, *rest)[1]

    def _sizes(self) -> tuple[int, int, int]:
        maps, groups = self._maps(), self.options["groups"]
        positions = maps.shape[1] * math.prod(maps.shape[3:])
        return positions, math.prod(self.shape[1:]), self.shape[0] // groups

    def _padded(self, images: Tensor) -> Tensor:
        widths = [n for n in reversed(self.options["padding"]) for _ in range(2)]
        return F.pad(images, widths) if any(widths) else images

    def _images(self) -> Tensor:
        """Return what windows are taken of."""
        return self._of_images(self.activations)

    def _maps(self) -> Tensor:
        """Return what has a number for each window."""
        return self._of_images(self.output_grads)

    def _of_images(self, tensor: Tensor) -> Tensor:
        """Return `(B, N, channels, *size)`: a sample may be several images."""
        return tensor if tensor.dim() == len(self.shape) + 1 else tensor.unsqueeze(1)

    def _ordered(self, out: Tensor) -> Tensor:
        return out.unflatten(1, (self.options["groups"], -1))

    def _windows(self, images: Tensor, kernel: torch.Size, size: torch.Size) -> Tensor:
        """Return what the kernel sees at each position: `(N, groups, in, positions)`."""
        windows, dims = self._padded(images), len(kernel)
        gaps = self.options["stride"], self.options["dilation"]
        for dim, (k, n, stride, dilation) in enumerate(zip(kernel, size, *gaps, strict=True), 2):
            windows = windows.unfold(dim, dilation * (k - 1) + 1, stride)[..., ::dilation]
            windows = windows.narrow(dim, 0, n)
        windows = windows.movedim([*range(-dims, 0)], [*range(2, 2 + dims)])
        inputs = self.shape[1] * kernel.numel()
        return windows.reshape(len(images), self.options["groups"], inputs, size.numel())


class TransposedConvolution(Convolution):
    """A weight `(in, out / groups, *kernel)`: its convolution leads from the outputs back."""

    def _images(self) -> Tensor:
        return self._of_images(self.output_grads)

    def _maps(self) -> Tensor:
        return self._of_images(self.activations)


def _matcher(rule: type[Convolution], dims: int) -> Matcher:
    names = ["stride", "padding", "dilation", "groups"]
    if rule is TransposedConvolution:
        names = ["stride", "padding", "output_padding", "groups", "dilation"]

    def call(
        is_weight: Callable[[Any], bool],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **named: Any,
    ) -> MatchedCall | None:
        given = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
        given |= {**dict(zip(names, args, strict=False)), **named}
        if isinstance(given["padding"], str):
            return None
        options = {"groups": given["groups"]}
        for name in ("stride", "padding", "dilation"):
            each = given[name]  # a number, or one for each dimension
            options[name] = (
                [each] * dims if isinstance(each, int) else [*each] * (dims // len(each))
            )
        images = "b" if input.dim() == dims + 2 else ""
        return MatchedCall(rule, input, weight, bias, options, f"n{images}o...->no")

    return call


RULES: dict[Callable, Matcher] = {
    getattr(F, f"{name}{dims}d"): _matcher(rule, dims)
    for name, rule in (("conv", Convolution), ("conv_transpose", TransposedConvolution))
    for dims in (1, 2, 3)
}
