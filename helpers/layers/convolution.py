"""Convolutions, plain and transposed, in one to three dimensions: linear in an image's windows."""

import itertools
import math
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers.layer_call import IsWeight, MatchedCall, Matcher
from helpers.layers.linear import Linear

# How many numbers of inputs and gradients to process at a time without unfolding: they stay in a
# core's cache, where each is read once per kernel position.
_CACHED = 2**18

# With fewer channels than this, products for one kernel position are too small to be fast; with
# fewer positions per output channel, copying windows is cheaper.
_CHANNELS, _POSITIONS = 8, 24

# How many numbers the unfolded inputs of a convolution may have at a time: 4 MB in float32.
_PIECE = 2**20


class Convolution(Linear):
    """A weight `(out, in / groups, *kernel)` over the positions of an image.

    Unfolded into windows `(n, groups, positions, in / groups * kernel)`, a convolution is linear.
    """

    FORMULA = "ngto,ngti->ngoi"

    def operands(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield gradients of the outputs and windows of the inputs."""
        groups, (images, maps) = self.options["groups"], self._sides()
        positions = math.prod(maps.shape[3:]) * images.shape[1]
        step = max(1, _PIECE // max(1, positions * math.prod(self.shape[1:]) * groups))
        for x, d in zip(images.split(step), maps.split(step), strict=True):
            windows = self._windows(x.flatten(0, 1), d.shape[3:])
            windows = windows.reshape(len(windows), groups, self.shape[1:].numel(), -1)
            d = d.flatten(0, 1).flatten(2).unflatten(1, (groups, -1))
            # (b * N, groups, n, L) to (b, groups, N * L, n), without a copy where N is 1
            yield tuple(
                side.unflatten(0, (len(x), -1)).movedim(1, 2).movedim(3, -1).flatten(2, 3)
                for side in (d, windows)
            )

    def write(self, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, without windows where that is cheaper."""
        groups, (images, maps) = self.options["groups"], self._sides()
        positions, _, outputs = self._sizes()
        by_place = self.shape[1] >= _CHANNELS and positions >= _POSITIONS * outputs
        if images.shape[1] > 1 or not by_place:
            super().write(out, add=add)
            return
        sides = images.squeeze(1), maps.squeeze(1), out
        step = max(1, _CACHED // (images[0].numel() + maps[0].numel() + 1))
        for x, d, rows in zip(*(side.split(step) for side in sides), strict=True):
            windows, products = self._windows(x, d.shape[2:]), []
            d = d.flatten(2).unflatten(1, (groups, -1))
            for offset in itertools.product(*map(range, self.shape[2:])):
                window = windows[(slice(None), slice(None), *offset)].flatten(2)
                products.append(d @ window.unflatten(1, (groups, -1)).mT)
            values = torch.stack(products, -1).view(rows.shape)
            rows.add_(values) if add else rows.copy_(values)

    def total(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor, without windows."""
        (images, maps), dims = self._sides(), len(self.shape) - 2
        maps = maps * factors.view(-1, *(1,) * (dims + 2))
        sides = maps.flatten(0, 1), images.flatten(0, 1), images.new_empty(self.shape), None
        options = [self.options[name] for name in ("stride", "padding", "dilation")]
        options_left = False, [0] * dims, self.options["groups"], [False, True, False]
        return torch.ops.aten.convolution_backward(*sides, *options, *options_left)[1]

    def _sizes(self) -> tuple[int, int, int]:
        _, maps = self._sides()
        positions = maps.shape[1] * math.prod(maps.shape[3:])
        return positions, math.prod(self.shape[1:]), self.shape[0] // self.options["groups"]

    def _sides(self) -> list[Tensor]:
        """Return images and maps `(B, N, channels, *size)`, one map entry per window."""
        sides = self.activations, self.output_grads  # a sample may be one image
        return [side if side.dim() > len(self.shape) else side.unsqueeze(1) for side in sides]

    def _ordered(self, out: Tensor) -> Tensor:
        return out.unflatten(1, (self.options["groups"], -1))

    def _windows(self, images: Tensor, size: torch.Size) -> Tensor:
        """Return the windows of an image: `(N, channels, *kernel, *size)`."""
        kernel, dims = self.shape[2:], len(size)
        widths = [n for n in reversed(self.options["padding"]) for _ in range(2)]
        windows = F.pad(images, widths) if any(widths) else images
        gaps = self.options["stride"], self.options["dilation"]
        for dim, (k, n, stride, dilation) in enumerate(zip(kernel, size, *gaps, strict=True), 2):
            windows = windows.unfold(dim, dilation * (k - 1) + 1, stride)[..., ::dilation]
            windows = windows.narrow(dim, 0, n)
        return windows.movedim([*range(-dims, 0)], [*range(2, 2 + dims)])


class TransposedConvolution(Convolution):
    """A weight `(in, out / groups, *kernel)`: its convolution maps outputs to inputs."""

    def _sides(self) -> list[Tensor]:
        return super()._sides()[::-1]


def _matcher(rule: type[Convolution], dims: int) -> Matcher:
    names = "bias", "stride", "padding", "dilation", "groups"
    if rule is TransposedConvolution:
        names = "bias", "stride", "padding", "output_padding", "groups", "dilation"

    def call(
        is_weight: IsWeight, input: Tensor, weight: Tensor, *args: Any, **named: Any
    ) -> MatchedCall | None:
        arguments = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
        arguments |= {**dict(zip(names, args, strict=False)), **named}
        if isinstance(arguments["padding"], str):
            return None
        options = {"groups": arguments["groups"]}
        for name in ("stride", "padding", "dilation"):
            value = (arguments[name],) if isinstance(arguments[name], Integral) else arguments[name]
            options[name] = [*value] * (dims // len(value))
        images = "b" if input.dim() == dims + 2 else ""
        return MatchedCall(rule, input, weight, arguments["bias"], options, f"n{images}o...->no")

    return call


RULES: dict[Callable, Matcher] = {
    getattr(F, f"{name}{dims}d"): _matcher(rule, dims)
    for name, rule in (("conv", Convolution), ("conv_transpose", TransposedConvolution))
    for dims in (1, 2, 3)
}
