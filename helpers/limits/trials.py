"""Samples that interact in the forward pass or the loss, which comparing gradients cannot show."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers import compare
from helpers.limits.bare import Case
from helpers.limits.findings import Finding, described
from helpers.transforms import batches
from helpers.transforms import randomness as streams
from helpers.transforms.batches import tensors_in
from helpers.transforms.fallback import find_place


@dataclass
class Trial:
    """The results of a model on some samples, without transforms."""

    predictions: Any
    loss: Any
    outputs: dict[str, list[Any]]
    """By module, what it returned in each of its calls."""
    drew: bool
    """Whether random numbers were drawn."""


def try_samples(case: Case, chosen: slice) -> Trial:
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


def find_interactions(full: Trial, singles: list[Trial], tolerance: float) -> list[Finding]:
    """Compare rows alone with rows together, and find the first module that differs."""
    alone = [single.predictions for single in singles]
    error = _largest_gap(full.predictions, alone)
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
        if called_once and _largest_gap(outputs[0], alone) > tolerance:
            return name
    return "the model"


def _largest_gap(together: Any, alone: list[Any]) -> float:
    """Return how far tensors `(B, ...)` are from those `(1, ...)` of the same samples."""
    largest = 0.0
    for rows, rows_alone in _aligned(together, alone):
        numeric = rows.is_floating_point() or rows.is_complex()
        shapes = {tuple(row.shape) for row in rows_alone}
        # Other tensors, such as attention masks (T, T), do not have one row per sample.
        has_rows = shapes == {(1, *rows.shape[1:])} and len(rows) == len(rows_alone)
        if numeric and has_rows:
            error = compare.largest_error(rows, torch.cat(rows_alone))
            largest = max(largest, error)
    return largest


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
        return []
    losses = _Losses(full.loss.detach(), torch.stack(alone).detach(), tolerance)

    slopes_together = _slopes([full], full)  # (B, n)
    slopes_alone = _slopes(singles, full)  # (B, n)
    if slopes_together is None or slopes_alone is None:  # only values can be compared
        first = losses.alone[0]
        if losses.has_mean_or_sum(losses.batch) or losses.equals_any(losses.batch, first):
            return []
        return [Finding("loss_fn", losses.summary() + losses.difference())]
    if slopes_together.shape != slopes_alone.shape:
        return []
    if not slopes_together[1:].any():  # the loss reads the first sample: it is for a batch of one
        return []

    weights = _weights(slopes_together, slopes_alone, tolerance)  # (B,)
    weighted_slopes = weights[:, None] * slopes_alone
    weighted_sum = (weights * losses.alone).sum()
    explains_slopes = losses.equals_any(slopes_together, weighted_slopes)
    explains_loss = losses.equals_any(losses.batch, weighted_sum, losses.alone.mean())
    if explains_slopes and explains_loss:
        return [] if _nearly_equal(weights) else [_weighted(case, losses, weights)]
    if _broadcasts(case, losses):
        return [Finding("loss_fn", losses.summary(), "loss-that-broadcasts")]

    entry = "samples-that-meet-in-the-loss"
    if explains_slopes and _scalars_agree(full, singles, losses):
        entry = Finding.entry
    measured = f"{losses.summary()}{losses.difference()}, and no sample weights explain it"
    return [Finding("loss_fn", measured, entry)]


def _is_scalar(loss: Any) -> bool:
    return isinstance(loss, Tensor) and loss.dim() == 0


def _slopes(trials: list[Trial], full: Trial) -> Tensor | None:
    """Differentiate losses with respect to the predictions that are rows.

    Args:
        trials: Those whose losses are differentiated, of `B` samples together.
        full: The trial of the whole batch, which shows what has rows.

    Returns:
        `(B, n)`: a row for each sample, an entry for each of the n numbers predicted for it; or
        None if there are none.
    """
    slopes = []
    try:
        for trial in trials:
            predictions = _differentiable_rows(trial, full)
            grads = torch.autograd.grad(trial.loss, predictions, allow_unused=True)
            flat_grads = []
            for grad in grads:
                if grad is not None:
                    # One number per sample, (B,), becomes (B, 1), and (B, ...) becomes (B, n).
                    flat_grads.append(torch.atleast_1d(grad)[..., None].flatten(1))
            slopes.append(torch.cat(flat_grads, 1))
        return torch.cat(slopes)
    except RuntimeError:  # the loss does not depend on them, or called backward() itself
        return None


def _differentiable_rows(trial: Trial, full: Trial) -> list[Tensor]:
    """List the predictions of a trial with a gradient that have rows in the whole batch."""
    rows = []
    for prediction, (of_batch,) in _aligned(trial.predictions, [full.predictions]):
        differentiable = prediction.is_floating_point() and prediction.requires_grad
        if differentiable and of_batch.dim():
            rows.append(prediction)
    return rows


def _weights(together: Tensor, alone: Tensor, tolerance: float) -> Tensor:
    """Fit by least squares how many times each sample's slopes `(B, n)` count in the batch."""
    sizes = alone.square().sum(1)  # (B,)
    weights = (together * alone).sum(1) / sizes
    # The weight of a sample without slopes would be rounding: it gets the mean of the others.
    lengths = sizes.sqrt()
    measurable = lengths > tolerance * lengths.max()
    mean = weights[measurable].mean() if measurable.any() else 0.0
    return torch.where(measurable, weights, mean)


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
