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

# A GPU needs much more work at a time to be busy: pieces are larger there by this factor.
_ON_DEVICES = 64


class Convolution(Linear):
    """A weight `(out, in / groups, *kernel)` over the positions of an image.

    Unfolded into windows `(n, groups, positions, in / groups * kernel)`, a convolution is linear.
    """

    FORMULA = "ngto,ngti->ngoi"

    def operands(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield gradients of the outputs and windows of the inputs."""
        groups = self.options["groups"]
        images, maps = self._sides()
        positions, inputs, _ = self._sizes()
        step = max(1, _sized(_PIECE, images) // max(1, positions * inputs * groups))
        for x, d in zip(images.split(step), maps.split(step), strict=True):
            windows = self._windows(x.flatten(0, 1), d.shape[3:])
            places = math.prod(d.shape[3:])
            windows = windows.reshape(len(windows), groups, inputs, places)
            d = d.flatten(0, 1).flatten(2).unflatten(1, (groups, -1))
            yield _positions_before_channels(d, len(x)), _positions_before_channels(windows, len(x))

    def write(self, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, without windows where that is cheaper."""
        images, maps = self._sides()
        positions, _, outputs = self._sizes()
        pays = self.shape[1] >= _CHANNELS and positions >= _POSITIONS * outputs
        if images.shape[1] > 1 or not pays:
            super().write(out, add=add)
            return
        images, maps = images.squeeze(1), maps.squeeze(1)
        step = max(1, _sized(_CACHED, images) // (images[0].numel() + maps[0].numel() + 1))
        pieces = zip(images.split(step), maps.split(step), out.split(step), strict=True)
        for x, d, rows in pieces:
            self._write_by_place(x, d, rows, add=add)

    def _write_by_place(self, images: Tensor, maps: Tensor, out: Tensor, *, add: bool) -> None:
        """Write the gradients of a few samples, one place of the kernel after the other."""
        # At each place, the weight is a matrix (out, in) that is applied to a shifted image.
        groups, kernel = self.options["groups"], self.shape[2:]
        windows = self._windows(images, maps.shape[2:])
        windows = windows.movedim(list(range(2, 2 + len(kernel))), list(range(len(kernel))))
        maps = maps.flatten(2).unflatten(1, (groups, -1))  # (b, groups, out, positions)
        products = []
        for place in itertools.product(*map(range, kernel)):
            shifted = windows[place].flatten(2).unflatten(1, (groups, -1))
            products.append(maps @ shifted.mT)  # (b, groups, out, in)
        values = torch.stack(products, -1).view(out.shape)
        out.add_(values) if add else out.copy_(values)

    def total(self, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor, without windows."""
        images, maps = self._sides()
        maps = maps * factors.view(factors.shape + (1,) * (maps.dim() - 1))
        # The weight's gradient in an ordinary backward pass of all images is a sum over them.
        _, total, _ = torch.ops.aten.convolution_backward(
            maps.flatten(0, 1),
            images.flatten(0, 1),
            images.new_empty(self.shape),  # the weight, of which only the shape counts
            None,  # there is no bias
            self.options["stride"],
            self.options["padding"],
            self.options["dilation"],
            False,  # not transposed
            [0] * (len(self.shape) - 2),  # output padding, of transposed ones
            self.options["groups"],
            [False, True, False],  # of input, weight and bias, the gradient of the weight
        )
        return total

    def _sizes(self) -> tuple[int, int, int]:
        """Return T and the numbers of inputs and outputs of a group."""
        _, maps = self._sides()
        positions = maps.shape[1] * math.prod(maps.shape[3:])
        return positions, math.prod(self.shape[1:]), self.shape[0] // self.options["groups"]

    def _sides(self) -> tuple[Tensor, Tensor]:
        """Return images and maps `(B, N, channels, *size)`, one map entry per window."""
        images, maps = self.activations, self.output_grads
        if images.dim() == len(self.shape):  # a sample is one image, without N
            images, maps = images.unsqueeze(1), maps.unsqueeze(1)
        return images, maps

    def _ordered(self, out: Tensor) -> Tensor:
        return out.unflatten(1, (self.options["groups"], -1))

    def _windows(self, images: Tensor, size: torch.Size) -> Tensor:
        """Return the windows of images: `(N, channels, *kernel, *size)`, a view if not padded."""
        dims = len(size)
        padding = self.options["padding"]
        windows = images
        if any(padding):
            widths = []
            for width in reversed(padding):  # `F.pad` begins with the last dimension
                widths += [width, width]
            windows = F.pad(images, widths)
        for i in range(dims):
            stride, dilation = self.options["stride"][i], self.options["dilation"][i]
            length = dilation * (self.shape[2 + i] - 1) + 1
            # A new last dimension for the places in a window.
            windows = windows.unfold(2 + i, length, stride)[..., ::dilation]
            # A transposed convolution with output padding has windows that no input reaches.
            windows = windows.narrow(2 + i, 0, size[i])
        return windows.movedim(list(range(-dims, 0)), list(range(2, 2 + dims)))


class TransposedConvolution(Convolution):
    """A weight `(in, out / groups, *kernel)`: its convolution maps outputs to inputs."""

    def _sides(self) -> tuple[Tensor, Tensor]:
        inputs, outputs = super()._sides()
        return outputs, inputs


def _positions_before_channels(side: Tensor, samples: int) -> Tensor:
    """Turn `(b * N, groups, n, L)` into `(b, groups, N * L, n)`, without a copy where N is 1."""
    side = side.unflatten(0, (samples, -1))
    return side.movedim(1, 2).movedim(3, -1).flatten(2, 3)


def _sized(numbers: int, tensor: Tensor) -> int:
    """Return how many numbers a piece may have where a tensor is."""
    return numbers if tensor.device.type == "cpu" else _ON_DEVICES * numbers


def _matcher(rule: type[Convolution], dims: int) -> Matcher:
    """Make the matcher of a function, from the order in which it takes its arguments."""
    names = ["bias", "stride", "padding", "dilation", "groups"]
    if rule is TransposedConvolution:
        names = ["bias", "stride", "padding", "output_padding", "groups", "dilation"]

    def match(
        is_weight: IsWeight, input: Tensor, weight: Tensor, *args: Any, **named: Any
    ) -> MatchedCall | None:
        arguments = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
        arguments.update(zip(names, args, strict=False))
        arguments.update(named)
        if isinstance(arguments["padding"], str):
            return None
        options = {"groups": arguments["groups"]}
        for name in ("stride", "padding", "dilation"):
            value = arguments[name]
            # One number, or a tuple of one, is for all dimensions.
            sizes = [value] if isinstance(value, Integral) else list(value)
            options[name] = sizes * (dims // len(sizes))
        # A call may have one image, or several: these are added up for a bias.
        bias_formula = "nbo...->no" if input.dim() == dims + 2 else "no...->no"
        return MatchedCall(rule, input, weight, arguments["bias"], options, bias_formula)

    return match


RULES: dict[Callable, Matcher] = {
    F.conv1d: _matcher(Convolution, 1),
    F.conv2d: _matcher(Convolution, 2),
    F.conv3d: _matcher(Convolution, 3),
    F.conv_transpose1d: _matcher(TransposedConvolution, 1),
    F.conv_transpose2d: _matcher(TransposedConvolution, 2),
    F.conv_transpose3d: _matcher(TransposedConvolution, 3),
}
