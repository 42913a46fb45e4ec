"""Embeddings: a sample reads some rows of a table."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers.layer_call import IsWeight, LayerCall, MatchedCall, Squares, checked_squares


class Embedding(LayerCall):
    """A weight `(rows, columns)` read at indices: activations are one-hot, `(n, ..., rows)`."""

    FORMULA = "n...o,n...i->nio"

    def operands(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield gradients and one-hot vectors; the methods below avoid these."""
        index, rows = self._rows()
        yield rows, F.one_hot(index, self.shape[0]).to(rows.dtype)

    def write(self, out: Tensor, *, add: bool = False) -> None:
        """Write the gradients of the samples into `out`, `(B, *shape)`, or add them to it."""
        if not add:
            out.zero_()
        index, rows = self._rows()
        _add_rows(index, rows, out)

    def reduced(self, left: Any, right: Any) -> Tensor:
        """Project the gradients without forming them; see `LayerCall`."""
        index, rows = self._rows()
        height = self.shape[0]
        if right is not None:
            rows = right(rows)
        if left is not None:
            # A sketch moves each row of the table to another place, times -1 or 1.
            index, signs = left.positions(index)
            rows = rows * signs[..., None]
            height = left.width
        table = rows.new_zeros(len(rows), height, rows.shape[2])
        return _add_rows(index, rows, table)

    def squares(self, *, then_total: bool = False) -> Squares | None:
        """Return the squared norms of the samples' gradients, `(B,)`; see `LayerCall`."""
        index, rows = self._rows()
        if rows.shape[1] ** 2 > self.shape[0]:  # T x T products cost more than the table
            return None
        # The product of two one-hot vectors is 1 if they read the same row of the table, else 0.
        same = index[:, :, None] == index[:, None, :]  # (B, T, T)
        squares = ((rows @ rows.mT) * same).sum((1, 2))
        norms = rows.norm(dim=2)
        largest = (norms[:, :, None] * norms[:, None, :] * same).sum((1, 2))
        return checked_squares(squares, largest)

    def total(self, factors: Tensor) -> Tensor:
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
        if padding is not None:  # this row never gets a gradient; -1 is the last one
            rows = rows * (index != padding % self.shape[0])[:, :, None]
        return index, rows


def _add_rows(index: Tensor, rows: Tensor, out: Tensor) -> Tensor:
    """Add rows `(B, T, columns)` to those of `out`, `(B, rows, columns)`, at indices `(B, T)`."""
    # Entry (b, t) goes to row index[b, t] of sample b.
    samples = torch.arange(len(index), device=index.device)[:, None].expand_as(index)
    return out.index_put_((samples, index), rows, accumulate=True)


def _embedding(
    is_weight: IsWeight, input: Tensor, weight: Tensor, padding_idx: Any = None, **options: Any
) -> MatchedCall | None:
    """Match a call of `F.embedding`, with all options by name."""
    refused = options.get("scale_grad_by_freq") or options.get("sparse")
    if refused or options.get("max_norm") is not None:
        return None
    return MatchedCall(Embedding, input, weight, options={"padding": padding_idx})


RULES = {F.embedding: _embedding}
