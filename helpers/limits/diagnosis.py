"""Check a model by measurement: compute per-sample gradients in three ways, and compare."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from helpers import gradients, numbers
from helpers.compare import TOLERANCES
from helpers.limits import bare, finite_differences, trials
from helpers.limits.bare import Case
from helpers.limits.findings import (
    CannotCheckError,
    Checks,
    Diagnosis,
    Finding,
    described,
    finding_of,
    format_largest,
    format_names,
)
from helpers.limits.trials import Trial
from helpers.transforms import batches, checks, fallback
from helpers.transforms.batches import Tree, tensors_in
from helpers.transforms.known_wrong import Refusal, Watched
from helpers.transforms.switches import full_float32, uncompiled

FEW = 4
"""How many samples are taken at most."""


@torch.inference_mode(False)
@torch.enable_grad()
def diagnose(
    model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], data: Tree, targets: Tree = None
) -> Diagnosis:
    """Measure on a few samples what the bare composition of `torch.func` does with a model.

    It compares `vmap(grad)` over `functional_call`, the loop and `func_gradients` on at most four
    samples; the model before and after; rows alone with rows together; and the loss of the batch
    with those of its samples. If the forward pass itself differentiates, it compares autograd with
    finite differences, too. The report lists what was checked, and what could not be, and why.
    Model, mode, buffers and random streams are restored. It cannot see the code that calls the
    model (a wrong `in_dims`, parameters not detached), and cannot restore state kept outside the
    model, as by `functools.lru_cache`.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, as in `helpers.gradients`.
        data: `(B, ...)`, or a pytree of such tensors; four samples show more than one.
        targets: Likewise; `None` where the loss needs none.

    Returns:
        The findings, by module name, a comparison of `func_gradients` with the loop, and the
        checks that ran and that did not.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There is no sample, the batch sizes differ, a sample is not finite, the model
            is lazy, spread over processes, or does not run on these samples without transforms.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
        >>> data, labels = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
        >>> diagnosis = diagnose(model, nn.functional.cross_entropy, data, labels)
        >>> [(finding.entry, finding.where) for finding in diagnosis.findings]
        [('random-draws', '1')]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not callable(loss_fn) or isinstance(loss_fn, type):
        raise TypeError(f"loss_fn must be a function, not a class, got {loss_fn!r}")
    batch = batches.take(model, data=data, targets=targets)[:FEW]
    if not len(batch):
        raise ValueError("data must hold at least 1 sample, got an empty batch")
    for tensor in batch.tensors.values():
        if not tensor.isfinite().all():
            raise ValueError("data and targets must be finite, got NaN or infinity")
    checks.check_one_process(model)
    checks.select_parameters(model)
    dead = tuple(bare.left_behind(model))
    if dead:
        return Diagnosis(dead, "not possible until this is fixed")
    # In TF32, the loop and `vmap` would differ in every convolution on a GPU.
    with fallback.silent(), uncompiled, full_float32:
        return _diagnosed(Case(model, loss_fn, batch))


def _diagnosed(case: Case) -> Diagnosis:
    checks = Checks()
    grads = bare.run_composition(case, checks)
    singles = []
    for index in range(len(case.batch)):
        singles.append(trials.try_samples(case, slice(index, index + 1)))

    tolerance = _tolerance(case, singles)
    conclusion, expected, failure = _compare_with_loop(case, tolerance)
    checks.make("gradients", _compare_gradients, case, grads, expected, tolerance)
    own_grads = expected or grads or {}
    checks.make("finite samples", trials.find_not_finite, singles, own_grads)
    kept = trials.finite_samples(singles, own_grads)  # NaN would hide what else there is
    finite = [single for single, is_kept in zip(singles, kept.tolist(), strict=True) if is_kept]

    noting = finite_differences.note(case)
    if noting.differentiates:
        sample = case.batch[kept][:1]
        arguments = case, sample, noting, [single.predictions for single in finite]
        checks.make("finite differences", finite_differences.find_wrong_autograd, *arguments)
    _compare_batch(case, checks, kept, finite, tolerance)
    if failure and not checks.findings:
        checks.findings.append(failure)
    if expected and not checks.findings and not any(map(torch.any, expected.values())):
        zero = Finding("the loss", "gradients of these samples are 0", "no-gradient")
        checks.findings.append(zero)
    findings = checks.findings or _find_refusal(case)
    return Diagnosis(tuple(findings), conclusion, tuple(checks.ran), checks.skipped)


def _compare_batch(
    case: Case, checks: Checks, kept: Tensor, singles: list[Trial], tolerance: float
) -> None:
    """Compare the samples with the batch of those that are kept: their rows, and their loss."""
    # Kernels for a batch may round in another way than those for one sample.
    loose = min(100 * tolerance, 0.1)
    rows, loss = "rows alone and together", "the loss of the batch"
    full = None
    reason = ""
    if len(singles) < 2:
        reason = "fewer than two samples with finite gradients"
    else:
        try:
            full = trials.try_samples(case, slice(None) if kept.all() else kept)
        except ValueError as error:  # it works for a batch of one, which is all that is required
            reason = str(error)
    if full is not None and full.drew:  # samples alone and together differ by what is drawn
        reason = "the forward pass draws random numbers"
    if reason:
        checks.skipped |= {rows: reason, loss: reason}
        return
    before = len(checks.findings)
    checks.make(rows, trials.find_interactions, full, singles, loose)
    if len(checks.findings) > before:
        # If predictions depend on the batch, so does the loss, whatever its weights.
        checks.skipped[loss] = "the predictions depend on the batch"
    else:
        checks.make(loss, trials.find_loss_weights, case, full, singles, loose)


def _tolerance(case: Case, singles: list[Trial]) -> float:
    """Return how far methods may differ: by the rounding of the layer with the lowest precision."""
    tensors = list(case.model.parameters())
    for trial in singles:
        tensors.extend(tensors_in(trial.outputs))
    largest = 0.0
    for tensor in tensors:
        largest = max(largest, TOLERANCES.get(tensor.dtype.to_real(), 0.0))
    return largest


def _compare_with_loop(
    case: Case, tolerance: float
) -> tuple[str, dict[str, Tensor], Finding | None]:
    """Compare `func_gradients` with the loop.

    Returns a conclusion, the loop's gradients, and what either raises.
    """
    results = []
    for method in (gradients.func_gradients, gradients.loop_gradients):
        try:
            with case.put_back():
                results.append(method(case.model, case.loss_fn, case.batch))
        except ValueError as error:  # a refusal
            return f"{method.__name__} refuses: {' '.join(str(error).split())}", {}, None
        except Exception as error:
            if not fallback.leads_to_next_way(error):
                raise
            raised = f"{method.__name__} raises {described(error)}"
            return raised, {}, finding_of(error, case.model)
    got, expected = results
    if not expected:
        return "no parameter requires a gradient, so there is nothing to compare", {}, None
    wrong = numbers.differences(got, expected, tolerance)
    if wrong:
        conclusion = f"func_gradients and the loop differ in {format_names(wrong)}"
    else:
        conclusion = f"func_gradients is equal for all {len(expected)} parameters"
    count = len(case.batch)
    conclusion += f", on {count} sample" if count == 1 else f", on {count} samples"
    if case.in_eval:
        conclusion += f", with {format_names(case.in_eval)} in evaluation mode"
    return conclusion, expected, None


def _compare_gradients(
    case: Case, grads: dict[str, Tensor] | None, expected: dict[str, Tensor], tolerance: float
) -> list[Finding]:
    """Compare gradients of the bare composition with those of the loop."""
    if grads is None:
        raise CannotCheckError(bare.RAISES)
    findings = []
    frozen = []
    for name, parameter in case.model.named_parameters():
        if name in grads and not parameter.requires_grad:
            frozen.append(name)
    if 0 < len(frozen) < len(grads):
        where = format_names(frozen)
        findings.append(Finding(where, "frozen, gets a gradient", "frozen-parameters"))
    if not expected and not findings:
        raise CannotCheckError("nothing to compare with")
    wrong = numbers.differences(grads, expected, tolerance)
    if wrong:
        measured = f"differs from the loop, {format_largest(wrong)}"
        findings.append(Finding(format_names(wrong), measured))
    return findings


def _find_refusal(case: Case) -> list[Finding]:
    """Find the use of a parameter for which `func_gradients` takes the loop."""
    data, targets = case.batch[:1].whole()
    try:
        with case.put_back(), Watched(parameters=case.model.parameters()):
            case.loss_fn(batches.call(case.model, data), targets)
    except Refusal as error:
        seen = finding_of(error, case.model)
        return [Finding(seen.where, f"func_gradients takes the loop: {error}", seen.entry)]
    return []
