"""Samples that interact in the forward pass or the loss, which comparing gradients cannot show."""

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
class Run:
    """The results of a model on some samples, without transforms."""

    predictions: Any
    loss: Any
    outputs: dict[str, list[Any]]
    """By module, what it returned in each of its calls."""
    drew: bool


def run(case: Case, rows: slice) -> Run:
    """Run the model and the loss; raise ValueError where that cannot be done."""
    outputs: dict[str, list[Any]] = {}
    names = {id(module): name or "the model" for name, module in case.model.named_modules()}

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        if id(module) in names:  # not a copy made in the forward pass
            outputs.setdefault(names[id(module)], []).append(output)

    with case.put_back() as begin:
        for module in case.model.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook
                module.register_forward_hook(keep)
        data = case.batch[rows]
        try:
            inputs, targets = data.whole()
            predictions = batches.call(case.model, inputs)
            loss = case.loss_fn(predictions, targets)
        except Exception as error:
            raise ValueError(
                f"the model must run before it can be diagnosed, but on a batch of {len(data)}, "
                f"without transforms, {find_place(error, case.model)} raised {described(error)}"
            ) from error
        if isinstance(loss, Tensor) and not loss.is_floating_point():
            raise ValueError(f"loss_fn must return a floating point number, got {loss.dtype}")
        drew = not streams.alike(begin, streams.random_state(case.batch.leaves[0].device))
    return Run(predictions, loss, outputs, drew)


def find_interactions(full: Run, singles: list[Run], tolerance: float) -> list[Finding]:
    """Compare rows alone with rows together, and find the first module that differs."""
    off = _apart(full.predictions, [run.predictions for run in singles])
    if off <= tolerance:
        return []
    module_name = "the model"
    for name, (output, *more) in full.outputs.items():
        calls = [run.outputs.get(name, []) for run in singles]
        once = not more and all(len(outputs) == 1 for outputs in calls)
        if once and _apart(output, [outputs[0] for outputs in calls]) > tolerance:
            module_name = name
            break
    measured = f"rows alone and rows together differ, by up to {off:.1e} of the largest entry"
    return [Finding(module_name, measured, "samples-that-meet")]


def _apart(together: Any, alone: list[Any]) -> float:
    """Return how far tensors `(B, ...)` are from those `(1, ...)` of the same samples."""
    off = 0.0
    for together_rows, *rows in zip(tensors_in(together), *map(tensors_in, alone), strict=False):
        shapes = {tuple(row.shape) for row in rows}
        are_rows = shapes == {(1, *together_rows.shape[1:])} and len(together_rows) == len(rows)
        if are_rows and (together_rows.is_floating_point() or together_rows.is_complex()):
            off = max(off, compare.largest_error(together_rows, torch.cat(rows)))
    return off


def find_loss_weights(case: Case, full: Run, singles: list[Run], tolerance: float) -> list[Finding]:
    """Compare the loss of a batch, and what each row does to it, with the losses of its samples."""

    def alike(loss: Tensor, *others: Tensor) -> bool:
        return min(compare.largest_error(value, loss) for value in others) <= tolerance

    losses = [run.loss for run in singles]
    if not all(isinstance(value, Tensor) and not value.dim() for value in (full.loss, *losses)):
        return []
    loss, alone = full.loss.detach(), torch.stack(losses).detach()
    sample_mean, of_all = f"{alone.mean():.4g}", f"{loss:.4g}"
    measured = f"{of_all} for {len(alone)} samples, which have {sample_mean} each in the mean"
    gap = f", a difference of {(alone.mean() - loss).abs():.1e}" * (sample_mean == of_all)
    together, apart = _slopes([full], full), _slopes(singles, full)
    if together is None or apart is None:
        fits = alike(loss, alone.mean(), alone.sum(), alone[0])
        return [] if fits else [Finding("loss_fn", measured + gap)]
    if together.shape != apart.shape or not together[1:].any():  # written for a batch of one
        return []
    sizes = apart.square().sum(1)
    shares = (together * apart).sum(1) / sizes
    seen = sizes.sqrt() > tolerance * sizes.sqrt().max()  # the others' shares would be rounding
    shares = torch.where(seen, shares, shares[seen].mean() if seen.any() else 0.0)
    weighted = alike(together, shares[:, None] * apart)
    if weighted and alike(loss, (shares * alone).sum(), alone.mean()):
        if shares.max() - shares.min() <= 0.01 * shares.abs().max():
            return []
        measured += f", and of which {', '.join(f'{share:.3g}' for share in shares)} count"
        leaves = case.batch.tensors  # those of the targets, which may be in the data
        of_targets = [leaves[path] for path in leaves if path.startswith("targets")]
        one_each = all(leaf.dim() == 1 for leaf in of_targets or leaves.values())
        entry = "class-weights" if one_each else "means-of-unequal-units"
        return [Finding("loss_fn", measured, entry)]
    with case.put_back(), suppress(Exception):  # targets may not fit that shape
        data, targets = case.batch.whole()
        predictions = batches.call(case.model, data)
        fitted = case.loss_fn(predictions, targets.view_as(predictions)).detach()
        if targets.shape != predictions.shape and alike(fitted, alone.mean(), alone.sum()):
            return [Finding("loss_fn", measured, "loss-that-broadcasts")]
    columns = zip(*(tensors_in(run.predictions) for run in (full, *singles)), strict=False)
    for value, *values in columns:  # a number that the model computes per batch
        if value.is_floating_point() and not value.dim() and value is not full.loss:
            stacked = torch.stack(values).detach()
            weighted &= alike(value.detach(), stacked.mean(), stacked.sum())
    entry = Finding.entry if weighted else "samples-that-meet-in-the-loss"
    return [Finding("loss_fn", f"{measured}{gap}, and no sample weights explain it", entry)]


def _slopes(runs: list[Run], full: Run) -> Tensor | None:
    """Differentiate losses with respect to the predictions that are rows: (B, n), if any are."""
    slopes = []
    try:
        for run in runs:
            pairs = zip(*(tensors_in(r.predictions) for r in (run, full)), strict=False)
            rows = [p for p, q in pairs if p.is_floating_point() and p.requires_grad and q.dim()]
            grads = torch.autograd.grad(run.loss, rows, allow_unused=True)
            grads = [torch.atleast_1d(g)[..., None] for g in grads if g is not None]
            slopes.append(torch.cat([g.flatten(1) for g in grads], 1))
        return torch.cat(slopes)
    except RuntimeError:  # the loss does not depend on them, or called backward() itself
        return None
