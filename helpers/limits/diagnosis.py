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
    finite differences, too. Model, mode, buffers and random streams are restored. It cannot see the
    code that calls the model (a wrong `in_dims`, parameters not detached), and cannot restore state
    kept outside the model, as by `functools.lru_cache`.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, as in `helpers.gradients`.
        data: `(B, ...)`, or a pytree of such tensors; four samples show more than one.
        targets: Likewise; `None` where the loss needs none.

    Returns:
        The findings, by module name, and a comparison of `func_gradients` with the loop.

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
    findings, grads = bare.run_composition(case)
    singles = []
    for index in range(len(case.batch)):
        singles.append(trials.try_samples(case, slice(index, index + 1)))
    try:
        full = trials.try_samples(case, slice(None))
    except ValueError:  # it works for a batch of one, which is all that is required
        full = None

    tolerance = _tolerance(case, singles)
    conclusion, expected = _compare_with_loop(case, tolerance)
    if grads is not None:
        findings += _compare_gradients(case, grads, expected, tolerance)
    findings += finite_differences.find_wrong_autograd(case)
    # Where random numbers are drawn, samples alone and together differ by these.
    if full is not None and not full.drew and len(singles) > 1:
        # Kernels for a batch may round in another way than those for one sample.
        loose = min(100 * tolerance, 0.1)
        interactions = trials.find_interactions(full, singles, loose)
        # If predictions depend on the batch, so does the loss, whatever its weights.
        findings += interactions or trials.find_loss_weights(case, full, singles, loose)
    if expected and not findings and not any(map(torch.any, expected.values())):
        findings.append(Finding("the loss", "gradients of these samples are 0", "no-gradient"))
    return Diagnosis(tuple(findings or _find_refusal(case)), conclusion)


def _tolerance(case: Case, singles: list[Trial]) -> float:
    """Return how far methods may differ: by the rounding of the layer with the lowest precision."""
    tensors = list(case.model.parameters())
    for trial in singles:
        tensors.extend(tensors_in(trial.outputs))
    largest = 0.0
    for tensor in tensors:
        largest = max(largest, TOLERANCES.get(tensor.dtype.to_real(), 0.0))
    return largest


def _compare_with_loop(case: Case, tolerance: float) -> tuple[str, dict[str, Tensor]]:
    """Compare `func_gradients` with the loop; return a conclusion and the loop's gradients."""
    results = []
    for method in (gradients.func_gradients, gradients.loop_gradients):
        try:
            with case.put_back():
                results.append(method(case.model, case.loss_fn, case.batch))
        except ValueError as error:  # a refusal
            return f"{method.__name__} refuses: {' '.join(str(error).split())}", {}
        except Exception as error:
            if not fallback.leads_to_next_way(error):
                raise
            return f"{method.__name__} raises {described(error)}", {}
    got, expected = results
    if not expected:
        return "no parameter requires a gradient, so there is nothing to compare", {}
    wrong = numbers.differences(got, expected, tolerance)
    if wrong:
        conclusion = f"func_gradients and the loop differ in {format_names(wrong)}"
    else:
        conclusion = f"func_gradients is equal for all {len(expected)} parameters"
    count = len(case.batch)
    conclusion += f", on {count} sample" if count == 1 else f", on {count} samples"
    if case.in_eval:
        conclusion += f", with {format_names(case.in_eval)} in evaluation mode"
    return conclusion, expected


def _compare_gradients(
    case: Case, grads: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float
) -> list[Finding]:
    """Compare gradients of the bare composition with those of the loop."""
    findings = []
    frozen = []
    for name, parameter in case.model.named_parameters():
        if name in grads and not parameter.requires_grad:
            frozen.append(name)
    if 0 < len(frozen) < len(grads):
        where = format_names(frozen)
        findings.append(Finding(where, "frozen, gets a gradient", "frozen-parameters"))
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
