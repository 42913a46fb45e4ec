"""Embeddings: tables of rows, of which a sample reads some."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers.layer_call import LayerCall, MatchedCall, Matcher, Reducer, unless_lost


class Embedding(LayerCall):
    """A weight `(rows, columns)` read at indices: activations are one-hot, `(n, ..., rows)`."""

    FORMULA = "n...i,n...o->nio"

    def write(self, role: str, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, `(B, *shape)`, or add them to it."""
        index, rows = self._rows()
        if not add:
            out.zero_()
        samples = torch.arange(len(index), device=index.device)[:, None].expand_as(index)
        out.index_put_((samples, index), rows, accumulate=True)

    def reduced(self, role: str, left: Reducer | None, right: Reducer | None) -> Tensor | None:
        """Return the samples' gradients with both sides made smaller; see `LayerCall`."""
        index, rows = self._rows()
        rows = rows if right is None else right(rows)
        height = self.shape[0]
        if left is not None:
            index, signs = left.places(index)
            rows, height = rows * signs[..., None], left.width
        result = rows.new_zeros(len(rows), height, rows.shape[2])
        samples = torch.arange(len(index), device=index.device)[:, None].expand_as(index)
        return result.index_put_((samples, index), rows, accumulate=True)

    def squares(self, role: str, *, then_total: bool = False) -> Tensor | None:
        """Return the squared norms of the samples' gradients, `(B,)`; see `LayerCall`."""
        index, rows = self._rows()
        if rows.shape[1] ** 2 > self.shape[0]:
            return None
        same = index[:, :, None] == index[:, None, :]
        sizes = rows.norm(dim=2)
        return unless_lost(
            ((rows @ rows.mT) * same).sum((1, 2)),
            (sizes[:, :, None] * sizes[:, None, :] * same).sum((1, 2)),
        )

    def total(self, role: str, factors: Tensor) -> Tensor:
        """Return the sum of the samples' gradients, each times its factor."""
        index, rows = self._rows()
        table = rows.new_zeros(self.shape)
        rows = rows * factors[:, None, None]
        return table.index_add_(0, index.flatten(), rows.flatten(0, 1))

    def _rows(self) -> tuple[Tensor, Tensor]:
        """Return the indices `(B, T)` and the gradients `(B, T, columns)` of the rows read."""
        index = self.activations.reshape(len(self.activations), -1)  # a sample may be one index
        rows = self.output_grads.reshape(*index.shape, self.shape[1])
        padding = self.options["padding"]
        if padding is not None:
            rows = rows * (index != padding % self.shape[0])[:, :, None]
        return index, rows


def _embedding(
    is_weight: Callable[[Any], bool],
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> MatchedCall | None:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None

    def run(weight: Tensor) -> Tensor:
        return F.embedding(input, weight, padding_idx)

    return MatchedCall(Embedding, input, {"weight": weight}, run, {"padding": padding_idx})


RULES: dict[Callable, Matcher] = {F.embedding: _embedding}
