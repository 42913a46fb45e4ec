"""Check a model by measurement: compute per-sample gradients in three ways, and compare."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from helpers import gradients, numbers
from helpers.compare import TOLERANCES
from helpers.limits import bare, differences, trials
from helpers.limits.bare import Case
from helpers.limits.findings import (
    Diagnosis,
    Finding,
    described,
    finding_of,
    format_largest,
    format_names,
)
from helpers.transforms import batches, checks, fallback
from helpers.transforms.batches import Tree, tensors_in
from helpers.transforms.known_wrong import Refusal, Watched
from helpers.transforms.switches import uncompiled

FEW = 4  # samples at most


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
    if not all(tensor.isfinite().all() for tensor in batch.tensors.values()):
        raise ValueError("data and targets must be finite, got NaN or infinity")
    checks.check_one_process(model)
    checks.select_parameters(model)
    if dead := [*bare.left_behind(model)]:
        return Diagnosis(tuple(dead), "not possible until this is fixed")
    with fallback.silent(), uncompiled:
        return _diagnosed(Case(model, loss_fn, batch))


def _diagnosed(case: Case) -> Diagnosis:
    findings, grads = bare.run(case)
    singles = [trials.run(case, slice(i, i + 1)) for i in range(len(case.batch))]
    try:
        together = trials.run(case, slice(None))
    except ValueError:  # it works for a batch of one, which is all that is required
        together = None
    # Methods may differ by the rounding of the layer with the lowest precision.
    tensors = [*case.model.parameters(), *tensors_in([run.outputs for run in singles])]
    tolerance = max(TOLERANCES.get(tensor.dtype.to_real(), 0) for tensor in tensors)
    conclusion, expected = _compared(case, tolerance)
    if grads is not None:
        frozen = [x for x, p in case.model.named_parameters() if x in grads and not p.requires_grad]
        if 0 < len(frozen) < len(grads):
            where = format_names(frozen)
            findings.append(Finding(where, "frozen, gets a gradient", "frozen-parameters"))
        if wrong := numbers.differences(grads, expected, tolerance):
            measured = f"differs from the loop, {format_largest(wrong)}"
            findings.append(Finding(format_names(wrong), measured))
    findings += differences.compare(case)
    if together and not together.drew and len(singles) > 1:
        compared = together, singles, min(100 * tolerance, 0.1)
        findings += trials.find_interactions(*compared) or trials.find_loss_weights(case, *compared)
    if expected and not findings and not any(tensor.any() for tensor in expected.values()):
        findings.append(Finding("the loss", "gradients of these samples are 0", "no-gradient"))
    return Diagnosis(tuple(findings or _refused(case)), conclusion)


def _refused(case: Case) -> list[Finding]:
    """Find the use of a parameter for which `func_gradients` takes the loop."""
    data, targets = case.batch[:1].whole()
    try:
        with case.put_back(), Watched(parameters=case.model.parameters()):
            case.loss_fn(batches.call(case.model, data), targets)
    except Refusal as error:
        seen = finding_of(error, case.model)
        return [Finding(seen.where, f"func_gradients takes the loop: {error}", seen.entry)]
    return []


def _compared(case: Case, tolerance: float) -> tuple[str, dict[str, Tensor]]:
    """Compare `func_gradients` with the loop; return a conclusion and the loop's gradients."""
    results = []
    for method in (gradients.func_gradients, gradients.loop_gradients):
        try:
            with case.put_back():
                results.append(method(case.model, case.loss_fn, case.batch))
        except ValueError as error:  # a refusal
            return f"{method.__name__} refuses: {' '.join(str(error).split())}", {}
        except Exception as error:
            if not fallback.leads_to_loop(error):
                raise
            return f"{method.__name__} raises {described(error)}", {}
    expected = results[1]
    if not expected:
        return "no parameter requires a gradient, so there is nothing to compare", {}
    conclusion = f"func_gradients is equal for all {len(expected)} parameters"
    if wrong := numbers.differences(*results, tolerance):
        conclusion = f"func_gradients and the loop differ in {format_names(wrong)}"
    conclusion += f", on {len(case.batch)} sample" + "s" * (len(case.batch) > 1)
    if case.in_eval:
        conclusion += f", with {format_names(case.in_eval)} in evaluation mode"
    return conclusion, expected
