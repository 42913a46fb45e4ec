"""Model outputs: the one number per sample that data attribution differentiates.

A model output f(z, theta) is a function of a sample z and of the parameters. TRAK (Park et al.
2023, arXiv:2303.14186, Section 3) needs its value, to differentiate it with respect to theta, and
the derivative of the training loss with respect to it. A task computes both, and serves every
gradient computer. Lesson 5b derives what they are for.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.func import functional_call

from helpers.transforms.batches import Tree

Tensors = dict[str, Tensor]


class AbstractModelOutput(ABC):
    """A task: what a gradient computer differentiates."""

    @abstractmethod
    def get_output(
        self, model: nn.Module, weights: Tensors, buffers: Tensors, *sample: Tree
    ) -> Tensor:
        """Compute the model output of one sample.

        The functional computer calls it under `vmap` and `grad`, so avoid `.item()`, branches on
        values, and indexing by a label.

        Args:
            model: The module to call; its own tensors are not used.
            weights: All parameters by name.
            buffers: All buffers by name.
            sample: One sample of each tensor or pytree of a batch, without the dimension B. A
                batch that is a mapping is one pytree.

        Returns:
            A scalar, a tensor of shape `()`.
        """

    @abstractmethod
    def get_out_to_loss_grad(
        self, model: nn.Module, weights: Tensors, buffers: Tensors, batch: Tree
    ) -> Tensor:
        """Compute minus the derivative of each sample's loss with respect to its model output.

        Args:
            model: The module to call; its own tensors are not used.
            weights: All parameters by name.
            buffers: All buffers by name.
            batch: Tensors `(B, ...)`, or pytrees of such tensors; or one mapping.

        Returns:
            `(B, 1)`, detached.
        """


class _Margin(AbstractModelOutput):
    """The margin of a classifier, the log-odds `log(p / (1 - p))` of a label.

    The model returns logits `(B, C)`, with C at least 2, or an object with `.logits`, as in
    transformers. A label is a whole number `()`, 0 to C - 1. Raises ValueError for wrong shapes.
    """

    keywords: tuple[str, ...] = ()
    """The keywords for the model's inputs; if there are none, inputs are passed by position."""

    def _margins(
        self, model: nn.Module, weights: Tensors, buffers: Tensors, batch: tuple[Tensor, ...]
    ) -> Tensor:
        """Compute `(B,)`: the label's logit minus the logsumexp of the others."""
        inputs, labels = tuple(batch[:-1]), batch[-1]
        if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
            raise ValueError(
                "labels must be whole numbers, one for each sample (B,), "
                f"got {tuple(labels.shape)} of {labels.dtype}"
            )
        if self.keywords:
            kwargs = dict(zip(self.keywords, inputs, strict=True))
            outputs = functional_call(model, (weights, buffers), (), kwargs)
        else:
            outputs = functional_call(model, (weights, buffers), inputs)
        logits = getattr(outputs, "logits", outputs)  # (B, C)
        if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"the model must return logits (B, C) with C at least 2, got {got}")

        # Not `logits[range(B), labels]`, which `vmap` over `grad` cannot transform.
        label_logits = logits.gather(1, labels.long()[:, None]).squeeze(1)  # (B,)
        # With p = softmax(logits), log(p / (1 - p)) is the label's logit minus the logarithm of
        # the sum of the other exponentials: what both are divided by cancels.
        is_label = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]  # (B, C)
        others = logits.masked_fill(is_label, -torch.inf)
        return label_logits - others.logsumexp(dim=1)

    def _output(
        self, model: nn.Module, weights: Tensors, buffers: Tensors, *sample: Tensor
    ) -> Tensor:
        batch = tuple(tensor.unsqueeze(0) for tensor in sample)  # B = 1
        margins = self._margins(model, weights, buffers, batch)  # (1,)
        return margins.squeeze(0)

    def get_out_to_loss_grad(
        self, model: nn.Module, weights: Tensors, buffers: Tensors, batch: tuple[Tensor, ...]
    ) -> Tensor:
        """Compute 1 - p for each sample, p being the probability of its label.

        The loss is `-log p = log(1 + exp(-f))`, since the margin f is `log(p / (1 - p))`. Its
        derivative with respect to f is -(1 - p), and TRAK uses the absolute value (Section 3.4).
        Computed as `sigmoid(-f)`, it keeps its digits where p is close to 1.

        The batch is that of `get_output`, with a dimension B. Returns `(B, 1)`, detached, from 0 to
        1, in the dtype of the logits.
        """
        margins = self._margins(model, weights, buffers, batch).detach()
        return torch.sigmoid(-margins).unsqueeze(1)


class ImageClassificationModelOutput(_Margin):
    """The margin of an image classifier, called as `model(images)` (TRAK, Section 3.3)."""

    def get_output(
        self, model: nn.Module, weights: Tensors, buffers: Tensors, image: Tensor, label: Tensor
    ) -> Tensor:
        """Compute the margin `()` of one image, which has no dimension B."""
        return self._output(model, weights, buffers, image, label)


class TextClassificationModelOutput(_Margin):
    """The margin of a text classifier, called like BERT with 3 keywords (TRAK, Section 3.3)."""

    keywords = ("input_ids", "token_type_ids", "attention_mask")

    def get_output(
        self,
        model: nn.Module,
        weights: Tensors,
        buffers: Tensors,
        input_ids: Tensor,
        token_type_ids: Tensor,
        attention_mask: Tensor,
        label: Tensor,
    ) -> Tensor:
        """Compute the margin `()` of one text of T tokens.

        Token ids, segment ids and the mask (1 for a token, 0 for padding) are integers `(T,)`.
        """
        sample = (input_ids, token_type_ids, attention_mask, label)
        return self._output(model, weights, buffers, *sample)
