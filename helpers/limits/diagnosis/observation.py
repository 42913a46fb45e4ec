"""What a model does when it runs without transforms."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from helpers.compare import TOLERANCES, largest_error
from helpers.limits.diagnosis.inspection import Found, attributes, listed
from helpers.limits.diagnosis.signs import describe
from helpers.limits.diagnosis.trial import norms_in_eval, trainable, untouched
from helpers.limits.diagnosis.watch import Case, Watch
from helpers.transforms.batches import call
from helpers.transforms.known_wrong import Watched


@dataclass
class Observation:
    """One run: what was computed, and who watched."""

    watch: Watch
    predictions: Any
    loss: Tensor
    unreached: set[str] | None
    """The parameters that the loss does not depend on; `None` where that cannot be found."""


def observe(case: Case) -> Iterator[Found]:
    """Find what is silently different: buffers, stashes, draws, samples that meet, losses."""
    few = len(case.batch)
    singles = []
    for index in range(few):
        singles.append(_run(case, slice(index, index + 1), found := []))
        if index == 0:
            yield from found
            for kind, entry in (("torch", "random-draws"), ("numpy", "numpy-draws")):
                if drew := singles[0].watch.drew[kind]:
                    yield entry, listed(drew)
    if not all(isinstance(single.loss, Tensor) and single.loss.dim() == 0 for single in singles):
        yield "loss-is-no-scalar", "loss_fn"
        return
    if not singles[0].loss.is_floating_point():
        raise ValueError(
            f"loss_fn must return a floating point number, got {singles[0].loss.dtype}: a count "
            "has no gradient"
        )
    missing = [single.unreached for single in singles]
    if None not in missing and (names := set.intersection(*missing)):
        yield "no-gradient", listed(name for name in trainable(case.model) if name in names)
    try:
        whole = _run(case, slice(0, few), [])
    except ValueError:  # it holds for a batch of one, which is all that is asked of it
        few = 1
    drew = any(singles[0].watch.drew.values())
    if few > 1 and not drew:
        meeting = _meeting(singles, whole)
        yield from meeting
        if not meeting:
            yield from _losses(case, singles, whole)
    elif drew:
        yield from _weights(case, singles)


def tolerance(case: Case) -> float | None:
    """Return how far rounding leads in the precision that a layer works in, as under autocast."""
    dtypes = {output.dtype for _, output in _run(case, slice(0, 1), []).watch.outputs}
    low = dtypes & {torch.bfloat16, torch.float16}
    return max((TOLERANCES[dtype] for dtype in low), default=None)


def _run(case: Case, part: slice, found: list[Found]) -> Observation:
    """Run some samples, note what changed in the model, and put it back."""
    model = case.model
    with untouched(model):
        norms_in_eval(model)
        watch = Watch(model, case.batch.leaves[0].device)
        before, buffers = {*model.parameters()}, dict(model.named_buffers())
        versions = {name: buffer._version for name, buffer in buffers.items()}
        stashes = attributes(model)
        loss_fn = watch.follow(case.loss_fn)
        try:
            with watch.hearing(), Watched(), watch:
                data, targets = case.batch[part].whole()
                predictions = call(model, data)
                loss = loss_fn(predictions, targets)
        except Exception as error:
            many = part.stop - part.start
            raise ValueError(
                f"the model must run before it can be diagnosed, and on {many} "
                f"sample{'s' if many > 1 else ''}, without transforms, {watch.place} raised "
                f"{describe(error)}"
            ) from error
        after = dict(model.named_buffers())
        for name, buffer in buffers.items():
            if after.get(name) is not buffer:
                found.append(("rebound-buffers", name))
            elif buffer._version != versions[name]:
                found.append(("aliased-buffers", name))
        if watch.asked:
            found.append(("requires-grad-is-false", listed(watch.asked)))
        for place, tensors in attributes(model).items():
            if [*map(id, tensors)] != [*map(id, stashes.get(place, []))]:
                found.append(("stashed-activation", place))
        own = dict(model.named_parameters())
        if made := [name for name, each in own.items() if each not in before]:
            found.append(("state-on-self", listed(made)))
        params = {name: own[name] for name in trainable(model)}
        unreached = None if watch.opaque else _unreached_by(loss, params)
    return Observation(watch, predictions, loss, unreached)


def _unreached_by(loss: Any, params: dict[str, Tensor]) -> set[str] | None:
    """Return the parameters that a loss does not depend on."""
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        return set(params)
    try:
        loss.backward()  # a backward within it may reach more than is in the graph
    except Exception:  # the loss called backward(), or whatever the model's own may raise
        return None
    return {name for name, parameter in params.items() if parameter.grad is None}


def _meeting(singles: list[Observation], whole: Observation) -> list[Found]:
    """Find the first module whose output for a sample depends on the other samples."""
    calls = zip(whole.watch.outputs, *(single.watch.outputs for single in singles), strict=False)
    for (name, together), *alone in calls:
        rows = [output for _, output in alone]
        if all(row.shape[:1] == (1,) and row.shape[1:] == together.shape[1:] for row in rows):
            if len(together) != len(rows) or not together.is_floating_point():
                continue
            limit = 100 * TOLERANCES.get(together.dtype, 1e-5)
            if largest_error(together, torch.cat(rows)) > limit:
                return [("samples-that-meet", name)]
    return []


def _losses(case: Case, singles: list[Observation], whole: Observation) -> Iterator[Found]:
    """Compare the loss of a batch with the losses of its samples."""
    weighted = list(_weights(case, singles))
    yield from weighted
    losses = torch.stack([single.loss.detach() for single in singles])
    together = whole.loss.detach()
    if weighted or not isinstance(together, Tensor) or together.dim():
        return
    if isinstance(whole.predictions, Tensor) and whole.predictions.shape[:1] != losses.shape:
        return  # a model that holds for a batch of one
    limit = 100 * TOLERANCES.get(together.dtype, 1e-5)
    if largest_error(together, losses[0]) <= limit:  # a loss that holds for a batch of one
        return
    if min(largest_error(together, losses.mean()), largest_error(together, losses.sum())) > limit:
        predictions, (_, targets) = whole.predictions, case.batch.whole()
        tensors = isinstance(predictions, Tensor) and isinstance(targets, Tensor)
        broadcasts = tensors and targets.is_floating_point() and predictions.shape != targets.shape
        yield "loss-that-broadcasts" if broadcasts else "means-of-unequal-units", "loss_fn"


def _weights(case: Case, singles: list[Observation]) -> Iterator[Found]:
    """Find class weights that a batch of one divides away."""
    for name, options in singles[0].watch.loss_calls:
        weight = options.get("weight")
        mean = options.get("reduction", "mean") == "mean"
        if isinstance(weight, Tensor) and mean and len(weight.unique()) > 1:
            yield "class-weights", f"loss_fn ({name})"
            return
