"""Convolutions of one to three dimensions, transposed too: linear in the windows of an image."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers.layer_call import MatchedCall, Matcher, weighted_sum, write_or_add
from helpers.layers.linear import Linear

# How many numbers of inputs and gradients are taken at a time where nothing is unfolded: they stay
# in the cache of a core, where each is read once for each place of the kernel.
_CACHED = 2**18

# With fewer channels than this, products of one place of the kernel are too small to be fast; with
# fewer positions for each channel of the outputs, or rows padded to more than this times their
# length, copies of windows take less.
_CHANNELS, _POSITIONS, _LONGER = 8, 24, 1.5

# How many numbers the unfolded inputs of a convolution may have at a time: 4 MB in float32.
_PIECE = 2**20


class Convolution(Linear):
    """A weight `(out, in / groups, *kernel)` over the positions of an image.

    Unfolded into windows `(n, groups, positions, in * kernel)`, a convolution is linear.
    """

    FORMULA = "ngto,ngti->ngoi"

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

    def write(self, role: str, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, `(B, *shape)`, or add them to it."""
        if role == "bias" or not self._slides():
            super().write(role, out, add=add)
            return
        groups, dims = self.options["groups"], range(self._dims)
        images, maps = self._images().squeeze(1), self._maps().squeeze(1)
        step = max(1, _CACHED // (math.prod(images.shape[1:]) + math.prod(maps.shape[1:]) + 1))
        # Gradients in rows as long as those of the inputs lie at one distance, for all positions,
        # from what one place of the kernel sees: no window has to be copied.
        padding, size = self.options["padding"], maps.shape[2:]
        full = [n + 2 * p for n, p in zip(images.shape[2:], padding, strict=True)]
        wide = maps.new_zeros((min(step, len(maps)), maps.shape[1], size[0], *full[1:]))
        strides = [math.prod(full[dim + 1 :]) for dim in dims]
        length = 1 + sum((size[dim] - 1) * strides[dim] for dim in dims)
        jumps = [
            gap * stride for gap, stride in zip(self.options["dilation"], strides, strict=True)
        ]
        starts = [
            sum(n * jump for n, jump in zip(at, jumps, strict=True))
            for at in itertools.product(*map(range, self.shape[2:]))
        ]
        pieces = (tensor.split(step) for tensor in (images, maps, out))
        for x, d, rows in zip(*pieces, strict=True):
            long = wide[: len(d)]
            long[(..., *(slice(n) for n in size))] = d
            x, d = (
                t.flatten(2).unflatten(1, (groups, -1)).flatten(0, 1)
                for t in (self._padded(x), long)
            )
            d = d[..., :length]
            parts = [d @ x[..., start : start + length].mT for start in starts]
            write_or_add(torch.stack(parts, -1).view(rows.shape), rows, add)

    def _slides(self) -> bool:
        """Say whether to take one place of the kernel after the other is the cheaper way."""
        images, maps = self._images(), self._maps()
        padded = [n + 2 * p for n, p in zip(images.shape[3:], self.options["padding"], strict=True)]
        rows = math.prod(padded[1:]) / max(1, math.prod(maps.shape[4:]))
        plain = all(stride == 1 for stride in self.options["stride"]) and images.shape[1] == 1
        positions, _, outputs = self._sizes()
        many = self.shape[1] >= _CHANNELS and positions >= _POSITIONS * outputs
        return plain and many and rows <= _LONGER

    def total(self, role: str, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        if role == "bias":
            return weighted_sum(factors, self._bias())
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
        """Return what windows are taken of."""
        return self._of_images(self.activations)

    def _maps(self) -> Tensor:
        """Return what has a number for each window."""
        return self._of_images(self.output_grads)

    def _of_images(self, tensor: Tensor) -> Tensor:
        """Return `(B, N, channels, *size)`: a sample may be several images."""
        return tensor if tensor.dim() == self._dims + 3 else tensor.unsqueeze(1)

    def _bias(self) -> Tensor:
        return self._of_images(self.output_grads).flatten(3).sum((1, 3))

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


class TransposedConvolution(Convolution):
    """A weight `(in, out / groups, *kernel)`: its convolution leads from the outputs back."""

    def _images(self) -> Tensor:
        return self._of_images(self.output_grads)

    def _maps(self) -> Tensor:
        return self._of_images(self.activations)


def _matcher(rule: type[Convolution], function: Callable[..., Tensor], dims: int) -> Matcher:
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
        options = {name: given[name] for name in ("stride", "padding", "dilation")}
        options = {**_each_dimension(dims, **options), "groups": given["groups"]}

        def run(weight: Tensor, bias: Tensor | None) -> Tensor:
            return function(input, weight, bias, **given)

        return MatchedCall(rule, input, {"weight": weight, "bias": bias}, run, options)

    return call


def _each_dimension(dims: int, **options: Any) -> dict[str, list[int]]:
    """Spell options out, a number for each dimension."""
    return {
        name: [value] * dims if isinstance(value, int) else list(value) * (dims // len(value))
        for name, value in options.items()
    }


RULES: dict[Callable, Matcher] = {
    getattr(F, f"{name}{dims}d"): _matcher(rule, getattr(F, f"{name}{dims}d"), dims)
    for name, rule in (("conv", Convolution), ("conv_transpose", TransposedConvolution))
    for dims in (1, 2, 3)
}
