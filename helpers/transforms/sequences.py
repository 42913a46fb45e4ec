"""Samples of unequal length: a `PackedSequence`, and the bags of `nn.EmbeddingBag`."""

import inspect
from collections.abc import Callable, MutableMapping, Sequence
from itertools import pairwise
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence


class Sequences:
    """B tensors `(T, ...)` of unequal T, indexed like a tensor `(B, ...)`.

    `of_one` turns one into the model's input; `like` is an example.
    """

    def __init__(
        self, samples: Sequence[Tensor], of_one: Callable[[Tensor], Any], like: Tensor
    ) -> None:
        self.samples = samples
        self.of_one = of_one
        self.like = like
        self.device = like.device

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, rows: int) -> Tensor: ...

    @overload
    def __getitem__(self, rows: slice | Tensor) -> "Sequences": ...

    def __getitem__(self, rows: int | slice | Tensor) -> "Tensor | Sequences":
        """Return one sample, or several samples."""
        if isinstance(rows, int):
            return self.samples[rows]
        # Let torch say which samples a slice, a mask or a tensor of indices chooses.
        if isinstance(rows, Tensor):
            rows = rows.cpu()  # a GPU's cannot index a tensor of the CPU
        chosen = torch.arange(len(self))[rows].tolist()
        samples = [self.samples[index] for index in chosen]
        return Sequences(samples, self.of_one, self.like)


def unpacked(packed: PackedSequence) -> Sequences:
    """Split a `PackedSequence` into one per sample."""
    samples = [sample.detach() for sample in unpack_sequence(packed)]
    return Sequences(samples, _packed_alone, like=samples[0])


def _packed_alone(sample: Tensor) -> PackedSequence:
    return pack_sequence([sample])


def with_bags(model: nn.Module, data: Any) -> Any:
    """Split the input of an `nn.EmbeddingBag` by sample, if the data contain `offsets`.

    Where `forward` takes an argument `offsets`, that and the argument before it, both 1-D, are the
    layer's `offsets` and `input`. Sample i has the entries from `offsets[i]` up to `offsets[i +
    1]`; likewise of `per_sample_weights`. Returns the data with `Sequences` in their place.

    Raises:
        ValueError: The offsets do not divide the entries.
    """
    layer = _first_bag_layer(model)
    if layer is None:
        return data
    names = list(inspect.signature(model.forward).parameters)
    if "offsets" not in names[1:]:
        return data
    input_name = names[names.index("offsets") - 1]

    is_by_name = isinstance(data, MutableMapping)
    # A copy, so that the caller's data stay as they are.
    arguments = dict(data) if is_by_name else dict(zip(names, data, strict=False))
    for name in (input_name, "offsets"):
        value = arguments.get(name)
        if not isinstance(value, Tensor) or value.dim() != 1:
            return data

    entries, offsets = arguments[input_name], arguments["offsets"]
    starts = offsets.tolist()
    if not layer.include_last_offset:
        starts.append(len(entries))  # where the last bag ends
    ends = [*starts, len(entries)]
    if starts[:1] != [0] or ends != sorted(ends):
        raise ValueError(
            f"offsets must start at 0, not decrease, and not exceed the {len(entries)} entries of "
            f"{input_name}, got {offsets.tolist()}"
        )

    bags = [slice(start, end) for start, end in pairwise(starts)]
    for name in (input_name, "per_sample_weights"):
        rows = arguments.get(name)
        if rows is not None:
            rows = rows.detach()
            arguments[name] = Sequences([rows[bag] for bag in bags], _as_it_is, like=rows[:0])
    bag_offsets = []
    for bag in bags:
        # The offsets of this bag alone: where it starts and, if the layer wants that, ends.
        alone = [0, bag.stop - bag.start] if layer.include_last_offset else [0]
        bag_offsets.append(offsets.new_tensor(alone))
    like = offsets.new_zeros(2 if layer.include_last_offset else 1)
    arguments["offsets"] = Sequences(bag_offsets, _as_it_is, like)

    if is_by_name:
        return arguments
    # What `forward` takes as `*args` has no names of its own.
    return tuple(arguments.values()) + tuple(data[len(arguments) :])


def _first_bag_layer(model: nn.Module) -> nn.EmbeddingBag | None:
    for layer in model.modules():
        if isinstance(layer, nn.EmbeddingBag):
            return layer
    return None


def _as_it_is(sample: Tensor) -> Tensor:
    return sample
