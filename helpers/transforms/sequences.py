"""Samples of unequal length: a `PackedSequence`, and the bags of `nn.EmbeddingBag`."""

import inspect
from collections.abc import Callable, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

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
        self.samples, self.of_one, self.like = samples, of_one, like
        self.device = like.device

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, rows: int | slice | Tensor) -> "Tensor | Sequences":
        """Return one sample, or several samples."""
        if isinstance(rows, int):
            return self.samples[rows]
        chosen = torch.arange(len(self))[rows].tolist()
        return Sequences([self.samples[index] for index in chosen], self.of_one, self.like)


def unpacked(packed: PackedSequence) -> Sequences:
    """Split a `PackedSequence` into one per sample."""
    samples = [sample.detach() for sample in unpack_sequence(packed)]
    return Sequences(samples, lambda sample: pack_sequence([sample]), samples[0])


def with_bags(model: nn.Module, data: Any) -> Any:
    """Split the input of an `nn.EmbeddingBag` by sample, if the data contain `offsets`.

    Where `forward` takes an argument `offsets`, that and the argument before it, both 1-D, are the
    layer's `offsets` and `input`. Sample i has the entries from `offsets[i]` up to `offsets[i +
    1]`; likewise of `per_sample_weights`. Returns the data with `Sequences` in their place.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.EmbeddingBag)]
    by_name = isinstance(data, MutableMapping)
    if not layers:
        return data
    names = [*inspect.signature(model.forward).parameters]
    before = names[names.index("offsets") - 1] if "offsets" in names[1:] else ""
    arguments = data if by_name else dict(zip(names, data, strict=False))
    entries, offsets = arguments.get(before), arguments.get("offsets")
    if not all(isinstance(rows, Tensor) and rows.dim() == 1 for rows in (entries, offsets)):
        return data
    closed, count = layers[0].include_last_offset, len(entries)
    starts = offsets.tolist() if closed else [*offsets.tolist(), count]
    if starts[:1] != [0] or any(a > b for a, b in pairwise([*starts, count])):
        raise ValueError(
            f"offsets must start at 0, not decrease, and not exceed the {count} entries of "
            f"{before}, got {offsets.tolist()}"
        )
    bags = [slice(*ends) for ends in pairwise(starts)]
    divided = {
        name: Sequences([rows.detach()[bag] for bag in bags], lambda bag: bag, rows[:0].detach())
        for name in (before, "per_sample_weights")
        if (rows := arguments.get(name)) is not None
    }
    bag_offsets = [offsets.new_tensor([0, bag.stop - bag.start][: 1 + closed]) for bag in bags]
    divided["offsets"] = Sequences(bag_offsets, lambda start: start, offsets.new_zeros(1 + closed))
    changed = {**arguments, **divided}
    return changed if by_name else (*changed.values(), *data[len(arguments) :])
