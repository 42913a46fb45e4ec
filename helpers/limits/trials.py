"""Samples that interact in the forward pass or the loss, which comparing gradients cannot show."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers import compare
from helpers.limits.bare import Case
from helpers.limits.findings import CannotCheckError, Finding, described
from helpers.transforms import batches
from helpers.transforms import randomness as streams
from helpers.transforms.batches import tensors_in
from helpers.transforms.fallback import find_place
from helpers.transforms.loop import graph

_MEET = "samples-that-meet-in-the-loss"


@dataclass
class Trial:
    """The results of a model on some samples, without transforms."""

    predictions: Any
    loss: Any
    outputs: dict[str, list[Any]]
    """By module, what it returned in each of its calls."""
    drew: bool
    """Whether random numbers were drawn."""


def try_samples(case: Case, chosen: slice | Tensor) -> Trial:
    """Run the model and the loss on some samples; raise ValueError where that cannot be done."""
    names = {}
    for name, module in case.model.named_modules():
        names[id(module)] = name or "the model"
    outputs: dict[str, list[Any]] = {}

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        # A copy that the forward pass makes of a module has our hook, too, but no name.
        if id(module) in names:
            outputs.setdefault(names[id(module)], []).append(output)

    batch = case.batch[chosen]
    with case.put_back() as before:
        for module in case.model.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook
                module.register_forward_hook(keep)
        try:
            data, targets = batch.whole()
            predictions = batches.call(case.model, data)
            loss = case.loss_fn(predictions, targets)
        except Exception as error:
            place = find_place(error, case.model)
            raise ValueError(
                f"the model must run before it can be diagnosed, but on a batch of {len(batch)}, "
                f"without transforms, {place} raised {described(error)}"
            ) from error
        if isinstance(loss, Tensor) and not loss.is_floating_point():
            raise ValueError(f"loss_fn must return a floating point number, got {loss.dtype}")
        after = streams.random_state(case.devices())
        drew = not streams.alike(before, after)
    return Trial(predictions, loss, outputs, drew)


def find_not_finite(singles: list[Trial], grads: dict[str, Tensor]) -> list[Finding]:
    """Find samples whose loss, or else whose gradient `(B, ...)`, is NaN or infinite."""
    findings = []
    is_finite = finite_samples(singles, grads)
    of_losses: dict[str, list[int]] = {}
    of_gradients = []
    for index, single in enumerate(singles):
        if not _has_finite_loss(single):
            of_losses.setdefault(_first_not_finite(single), []).append(index)
        elif not is_finite[index]:
            of_gradients.append(index)
    count = len(singles)
    for where, rows in of_losses.items():
        measured = f"the loss is NaN or infinite {_rows(rows, count)}"
        findings.append(Finding(where, measured, "sample-without-a-gradient"))
    if of_gradients:
        measured = (
            f"the gradient is NaN or infinite, and the loss is not, {_rows(of_gradients, count)}"
        )
        findings.append(Finding("the backward pass", measured, "sample-without-a-gradient"))
    return findings


def finite_samples(singles: list[Trial], grads: dict[str, Tensor]) -> Tensor:
    """Tell of each sample `(B,)` whether its loss and its gradient are finite."""
    is_finite = torch.tensor([_has_finite_loss(single) for single in singles])
    for gradient in grads.values():
        rows = gradient.to_dense()[..., None].flatten(1)  # (B, n), of a scalar, too
        is_finite &= rows.isfinite().all(1).cpu()
    return is_finite


def _has_finite_loss(single: Trial) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors_in(single.loss))


def _first_not_finite(single: Trial) -> str:
    """Name the first module whose output is NaN, or the loss."""
    for name, outputs in single.outputs.items():
        for tensor in tensors_in(outputs):
            if tensor.isnan().any():  # infinite ones are usual: in masks
                return name
    return "loss_fn"


def _rows(rows: list[int], count: int) -> str:
    numbers = ", ".join(map(str, rows))
    return (
        f"for sample {numbers} of the first {count}"
        if len(rows) == 1
        else (f"for samples {numbers} of the first {count}")
    )


@dataclass(frozen=True)
class _Layout:
    """Where a tensor of the batch has the rows of each sample: in a dimension of B times k."""

    dimension: int
    count: int  # B
    is_interleaved: bool
    """Whether the first row of each sample comes first, then the second of each."""

    def rows(self, tensor: Tensor) -> Tensor:
        """Return `(B, n)`: all that belongs to each sample."""
        dimension = self.dimension
        if self.is_interleaved:
            split = tensor.unflatten(dimension, (-1, self.count))
            dimension += 1
        else:
            split = tensor.unflatten(dimension, (self.count, -1))
        return split.movedim(dimension, 0).flatten(1)


def _layout(together: Tensor, alone: list[Tensor]) -> _Layout | None:
    """Find where a tensor has a row, or k rows, for each sample; None if it has none.

    Args:
        together: Of the whole batch, such as `(B, C)`, `(L, B, H)` or `(B * k, E)`.
        alone: Of each sample, `(1, C)`, `(L, 1, H)` or `(k, E)`.
    """
    count = len(alone)
    shape = list(alone[0].shape)
    if any(list(tensor.shape) != shape for tensor in alone):
        return None
    if len(shape) == together.dim() - 1:  # what `squeeze` leaves of a batch of one
        shape.insert(0, 1)
    if len(shape) != together.dim():
        return None
    differing = []
    for dimension, (size, size_alone) in enumerate(zip(together.shape, shape, strict=True)):
        if size != size_alone:
            differing.append(dimension)
    if len(differing) != 1:  # such as an attention mask (T, T)
        return None
    (dimension,) = differing
    if together.shape[dimension] != count * shape[dimension] or not together.numel():
        return None
    layouts = [_Layout(dimension, count, False)]
    if shape[dimension] > 1:
        layouts.append(_Layout(dimension, count, True))
    return min(layouts, key=functools.partial(_gap, together=together, alone=alone))


def _gap(layout: _Layout, together: Tensor, alone: list[Tensor]) -> float:
    """Return how far the rows of the batch are from those of the samples alone."""
    rows_alone = torch.stack([tensor.flatten() for tensor in alone])
    return compare.largest_error(layout.rows(together), rows_alone)


def find_interactions(full: Trial, singles: list[Trial], tolerance: float) -> list[Finding]:
    """Compare rows alone with rows together, and find the first module that differs."""
    alone = [single.predictions for single in singles]
    error = _largest_gap(full.predictions, alone)
    if error is None:
        raise CannotCheckError("no output has a row for each sample")
    if error <= tolerance:
        return []
    where = _first_that_differs(full, singles, tolerance)
    measured = f"rows alone and rows together differ, by up to {error:.1e} of the largest entry"
    return [Finding(where, measured, "samples-that-meet")]


def _first_that_differs(full: Trial, singles: list[Trial], tolerance: float) -> str:
    """Name the first module, among those called once, whose outputs depend on the batch."""
    for name, outputs in full.outputs.items():
        # If a module is called several times, its calls alone and together need not correspond.
        called_once = len(outputs) == 1
        alone = []
        for single in singles:
            outputs_alone = single.outputs.get(name, [])
            called_once = called_once and len(outputs_alone) == 1
            alone.extend(outputs_alone)
        if called_once and (_largest_gap(outputs[0], alone) or 0.0) > tolerance:
            return name
    return "the model"


def _largest_gap(together: Any, alone: list[Any]) -> float | None:
    """Return how far tensors of the batch are from those of the same samples alone.

    None if no tensor has rows: attention masks (T, T), for one, have none.
    """
    gaps = []
    for rows, rows_alone in _aligned(together, alone):
        layout = _layout(rows, rows_alone)
        if layout and (rows.is_floating_point() or rows.is_complex()):
            gaps.append(_gap(layout, rows, rows_alone))
    return max(gaps, default=None)


def _aligned(together: Any, alone: Sequence[Any]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield each tensor of a nested value, with those at its place in other values."""
    values = [together]
    values.extend(alone)
    for tensors in zip(*map(tensors_in, values), strict=False):
        yield tensors[0], list(tensors[1:])


@dataclass
class _Losses:
    """The loss of a batch, and the losses of its samples alone."""

    batch: Tensor  # ()
    alone: Tensor  # (B,)
    tolerance: float

    def equals_any(self, value: Tensor, *candidates: Tensor) -> bool:
        errors = [compare.largest_error(candidate, value) for candidate in candidates]
        return min(errors) <= self.tolerance

    def has_mean_or_sum(self, value: Tensor) -> bool:
        """Tell whether a value is the mean or the sum of the samples' losses."""
        return self.equals_any(value, self.alone.mean(), self.alone.sum())

    def summary(self) -> str:
        batch, mean = f"{self.batch:.4g}", f"{self.alone.mean():.4g}"
        return f"{batch} for {len(self.alone)} samples, which have {mean} each in the mean"

    def difference(self) -> str:
        """Write the difference if the four digits of the summary do not show it."""
        mean = self.alone.mean()
        if f"{self.batch:.4g}" != f"{mean:.4g}":
            return ""
        return f", a difference of {(mean - self.batch).abs():.1e}"

    def unexplained(self) -> str:
        return f"{self.summary()}{self.difference()}, and no sample weights explain it"


def find_loss_weights(
    case: Case, full: Trial, singles: list[Trial], tolerance: float
) -> list[Finding]:
    """Compare the loss of a batch with the losses of its samples, and explain a difference.

    Every sample has a weight in a batch: its loss counts that many times. A mean or a sum gives
    all samples the same. A sample's weight is measured by its slopes, the derivatives of the loss
    with respect to its predictions: in the batch they are the weight times those of the sample
    alone.
    """
    alone = [single.loss for single in singles]
    if not _is_scalar(full.loss) or not all(map(_is_scalar, alone)):
        raise CannotCheckError("the loss is not a single number")
    losses = _Losses(full.loss.detach(), torch.stack(alone).detach(), tolerance)

    for output in tensors_in(full.predictions):
        if output.dim() and len(output) == 1:
            raise CannotCheckError("the model returns one row for a batch of several samples")
    outputs, meets = _slopes(full, singles, tolerance)
    if not outputs:  # only values can be compared
        first = losses.alone[0]
        if losses.has_mean_or_sum(losses.batch) or losses.equals_any(losses.batch, first):
            raise CannotCheckError("no slopes with respect to rows of outputs; the values agree")
        return [Finding("loss_fn", losses.summary() + losses.difference())]
    together = torch.cat([output.together for output in outputs], 1)  # (B, n)
    if not together[1:].any():
        raise CannotCheckError("the loss reads the first sample only: it is for a batch of one")

    joined = _Slopes(together, torch.cat([output.alone for output in outputs], 1))
    weights = _weights(joined, tolerance)  # (B,)
    explains_slopes = _explains(joined, weights, losses) and not meets
    weighted_sum = (weights * losses.alone).sum()
    explains_loss = losses.equals_any(losses.batch, weighted_sum, losses.alone.mean())
    if explains_slopes and explains_loss:
        return [] if _nearly_equal(weights) else [_weighted(case, losses, weights)]
    if _broadcasts(case, losses):
        return [Finding("loss_fn", losses.summary(), "loss-that-broadcasts")]
    if not explains_slopes:
        return _find_in_each_output(case, losses, outputs, meets)
    entry = Finding.entry if _scalars_agree(full, singles, losses) else _MEET
    return [Finding("loss_fn", losses.unexplained(), entry)]


def _find_in_each_output(
    case: Case, losses: _Losses, outputs: list["_Slopes"], meets: bool
) -> list[Finding]:
    """Explain a loss with a part for each output, such as logits and those of a router."""
    findings = []
    for output in outputs:
        weights = _weights(output, losses.tolerance)  # (B,)
        explains = _explains(output, weights, losses)
        if explains and _nearly_equal(weights):
            continue
        # Those of a mean over units or classes add up to 1.
        if explains and abs(weights.sum() - 1) <= 0.01:
            findings.append(_weighted(case, losses, weights))
        else:
            meets = True
    if meets:
        findings.append(Finding("loss_fn", losses.unexplained(), _MEET))
    elif not findings:  # one part is a mean, and another a sum
        findings.append(Finding("loss_fn", losses.unexplained()))
    return findings


def _is_scalar(loss: Any) -> bool:
    return isinstance(loss, Tensor) and loss.dim() == 0


@dataclass
class _Slopes:
    """The derivatives of losses with respect to one output, for each of B samples."""

    together: Tensor  # (B, n), of the loss of the batch
    alone: Tensor  # (B, n), of the loss of each sample


def _slopes(full: Trial, singles: list[Trial], tolerance: float) -> tuple[list[_Slopes], bool]:
    """Differentiate losses with respect to the outputs that they read.

    Returns:
        The slopes of each output with rows; and whether samples meet in one without rows, such as
        the load of experts: in the loss of the batch it counts in another way.
    """
    layouts, of_batch, of_samples = [], [], []
    alone = [single.predictions for single in singles]
    for output, output_alone in _aligned(full.predictions, alone):
        tensors = [output, *output_alone]
        differentiable = all(each.is_floating_point() and each.requires_grad for each in tensors)
        # A loss among the outputs would stand between the others and itself.
        if differentiable and output.dim():
            layouts.append(_layout(output, output_alone))
            of_batch.append(output)
            of_samples.append(output_alone)
    slopes_alone = []
    try:
        slopes, largest = _partial_slopes(full.loss, of_batch)
        for index, single in enumerate(singles):
            inputs = [output_alone[index] for output_alone in of_samples]
            slopes_alone.append(_partial_slopes(single.loss, inputs)[0])
    except RuntimeError:  # the loss does not depend on them, or called backward() itself
        return [], False

    found = []
    meets = False
    for place, layout in enumerate(layouts):
        alone = [of_sample[place] for of_sample in slopes_alone]
        sizes = [slope.abs().max() for slope in (slopes[place], *alone) if slope.numel()]
        if not sizes or max(sizes) <= tolerance * largest:  # the loss does not read it
            continue
        if layout:
            rows_alone = torch.stack([slope.flatten() for slope in alone])
            found.append(_Slopes(layout.rows(slopes[place]), rows_alone))
        elif slopes[place].dim() and slopes[place].shape == alone[0].shape:
            errors = [compare.largest_error(slope, slopes[place]) for slope in alone]
            meets = meets or max(errors) > tolerance
    return found, meets


def _partial_slopes(loss: Tensor, outputs: list[Tensor]) -> tuple[list[Tensor], float]:
    """Differentiate a loss with respect to outputs, each without the way through the others.

    The logits of a router reach a loss by a balancing term, and by the logits of the model. What
    `grad` returns for an output o is the sum of both; the second is subtracted here, for all
    outputs that are made from o. Returns the largest such sum, too.
    """
    totals = torch.autograd.grad(
        loss, outputs, allow_unused=True, materialize_grads=True, retain_graph=True
    )
    slopes = list(totals)

    # What is made from another output has a larger graph, which holds that output's.
    sizes = [len(set(graph(output))) for output in outputs]
    order = sorted(range(len(outputs)), key=sizes.__getitem__, reverse=True)
    for position, place in enumerate(order):
        earlier = order[position + 1 :]
        if earlier and slopes[place].any():
            through = torch.autograd.grad(
                outputs[place],
                [outputs[other] for other in earlier],
                slopes[place],
                allow_unused=True,
                materialize_grads=True,
                retain_graph=True,
            )
            for other, slope in zip(earlier, through, strict=True):
                slopes[other] = slopes[other] - slope
    largest = max(slope.abs().max().item() for slope in totals if slope.numel())
    return slopes, largest


def _weights(slopes: _Slopes, tolerance: float) -> Tensor:
    """Fit by least squares how many times each sample's slopes count in the batch, `(B,)`."""
    sizes = slopes.alone.square().sum(1)  # (B,)
    weights = (slopes.together * slopes.alone).sum(1) / sizes
    # The weight of a sample without slopes would be rounding: it gets the mean of the others.
    lengths = sizes.sqrt()
    measurable = lengths > tolerance * lengths.max()
    mean = weights[measurable].mean() if measurable.any() else 0.0
    return torch.where(measurable, weights, mean)


def _explains(slopes: _Slopes, weights: Tensor, losses: _Losses) -> bool:
    return losses.equals_any(slopes.together, weights[:, None] * slopes.alone)


def _nearly_equal(weights: Tensor) -> bool:
    spread = weights.max() - weights.min()
    return bool(spread <= 0.01 * weights.abs().max())


def _weighted(case: Case, losses: _Losses, weights: Tensor) -> Finding:
    """Report unequal weights: those of classes if each sample has one target, else of units."""
    leaves = case.batch.tensors
    targets = [leaf for path, leaf in leaves.items() if path.startswith("targets")]
    targets = targets or list(leaves.values())  # the data may hold the targets
    one_target_each = all(leaf.dim() == 1 for leaf in targets)
    entry = "class-weights" if one_target_each else "means-of-unequal-units"
    shown = ", ".join(f"{weight:.3g}" for weight in weights)
    return Finding("loss_fn", f"{losses.summary()}, and of which {shown} count", entry)


def _broadcasts(case: Case, losses: _Losses) -> bool:
    """Tell whether the loss is the mean or the sum once targets have the predictions' shape."""
    with case.put_back(), suppress(Exception):  # targets may not fit that shape
        data, targets = case.batch.whole()
        predictions = batches.call(case.model, data)
        mended = case.loss_fn(predictions, targets.view_as(predictions)).detach()
        return targets.shape != predictions.shape and losses.has_mean_or_sum(mended)
    return False


def _scalars_agree(full: Trial, singles: list[Trial], losses: _Losses) -> bool:
    """Compare the other scalars among the predictions: numbers that the model computes per batch.

    One that is neither the mean nor the sum of the samples' own mixes samples in the loss.
    """
    alone = [single.predictions for single in singles]
    for value, values_alone in _aligned(full.predictions, alone):
        if value.is_floating_point() and _is_scalar(value) and value is not full.loss:
            stacked = torch.stack(values_alone).detach()
            if not losses.equals_any(value.detach(), stacked.mean(), stacked.sum()):
                return False
    return True
