"""A self-check for a model of one's own: what in it raises, differs silently, or falls back."""

import warnings
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from helpers import compare, gradients
from helpers.limits.diagnosis import habits, inspection, observation, trial
from helpers.limits.diagnosis.signs import describe, one_line
from helpers.limits.diagnosis.watch import Case
from helpers.limits.lookup import entries, markdown
from helpers.transforms import batches, checks
from helpers.transforms.batches import Tree
from helpers.transforms.randomness import streams_kept
from helpers.transforms.switches import uncompiled

FEW = 4
"""How many samples are run, at most."""
WILL = {"loud": "raises", "silent": "silently differs", "slow": "falls back, slowly"}
COLUMNS = ["where", "will", "entry", "cause", "way out"]
DIFFERS = (
    "The bare composition computes other gradients than the loop: the forward asks what a "
    "parameter is, by its class or an attribute, or torch is wrong about an operation under vmap."
)
"""The cause of a difference that no entry covers."""


@dataclass(frozen=True)
class Finding:
    """One thing in a model that bare transforms do not take as it is."""

    where: str
    """The modules, parameters or buffers, by name; or `loss_fn`."""
    will: str
    """What it will do: raise, silently differ, or fall back."""
    entry: str
    """The name of its entry in lesson 6, or `"unknown"`."""
    cause: str
    """Why; where no entry covers it, the error."""
    fix: str
    """The way out."""


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and how `func_gradients` compares with the loop."""

    findings: tuple[Finding, ...]
    comparison: pd.DataFrame | None
    """The table of `helpers.compare`; `None` where one of the two refused."""
    conclusion: str
    """What the comparison says, in one sentence."""

    def table(self) -> pd.DataFrame:
        """Set out the findings: what each will do, where, why, and the way out."""
        return pd.DataFrame(map(astuple, self.findings), columns=COLUMNS)

    def __str__(self) -> str:
        lines = [
            f"{each.where}: {each.will} ({each.entry})\n    {each.cause}\n    {each.fix}"
            for each in self.findings
        ]
        conclusion = f"compared with the loop: {self.conclusion}"
        return "\n".join([*(lines or ["nothing found"]), conclusion])

    def _repr_markdown_(self) -> str:
        rows = [(f"`{where}`", *rest) for where, *rest in map(astuple, self.findings)]
        found = markdown(COLUMNS, rows) if rows else "Nothing found."
        return f"{found}\n\n**Compared with the loop.** {self.conclusion}."

    __repr__ = __str__


@torch.inference_mode(False)
@torch.enable_grad()
def diagnose(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    data: Tree,
    targets: Tree = None,
) -> Diagnosis:
    """Find what in a model the bare composition of `torch.func` does not take as it is.

    It runs the model on at most four samples, with transforms and without. The model, its mode, its
    buffers and all random streams are put back as they were. What lies in the calling code
    (a wrong `in_dims`, stale copies, parameters not detached) it cannot see.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, as in `helpers.gradients`.
        data: `(B, ...)`, or a tree of such tensors, with a sample at least; with four, more is
            seen.
        targets: Likewise; `None` where the loss needs none.

    Returns:
        The findings, by module name and with the way out, and a comparison of `func_gradients`
        with the loop.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: There is no sample, the batch sizes differ, a sample is not finite, the model
            lies in several processes, or it does not run on these samples without any transform.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
        >>> data, labels = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
        >>> diagnosis = diagnose(model, nn.functional.cross_entropy, data, labels)
        >>> [(finding.entry, finding.where) for finding in diagnosis.findings]
        [('random-draws', '1')]
    """
    _check_arguments(model, loss_fn)
    few = batches.take(model, data=data, targets=targets)[:FEW]
    if not len(few):
        raise ValueError("data must hold a sample at least, got an empty batch")
    floating = (each for each in few.tensors.values() if each.is_floating_point())
    if not all(each.isfinite().all() for each in floating):
        raise ValueError("data and targets must be finite, got NaN or infinity")
    with streams_kept(few.leaves[0].device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fallbacks are findings
        found = list(inspection.unrunnable(model))
        if found:
            return Diagnosis(_findings(found), None, "not possible before this is mended")
        inner, wrapped = inspection.unwrap(model)
        checks.check_one_process(inner)
        case = Case(inner, loss_fn, few)
        with trial.untouched(inner), uncompiled:
            seen = list(observation.observe(case))
            own = list(habits.observe(case))
            loud, bare = trial.transforms(case)
            found = [*wrapped, *loud, *inspection.structure(case.model), *seen, *own]
            comparison, says, expected = _compare(case)
            if bare and expected and all(each.will != WILL["silent"] for each in _findings(found)):
                _, wrong = _unequal(case, bare, expected)
                found += [(trial.UNKNOWN, inspection.listed(wrong), DIFFERS)] * (len(wrong) > 0)
            return Diagnosis(_findings(found), comparison, says)


def _check_arguments(model: object, loss_fn: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(loss_fn, type):
        raise TypeError(f"loss_fn is a class, call it first: {loss_fn.__name__}()")
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be a function, got {type(loss_fn).__name__}")


def _findings(found: list[tuple[str, ...]]) -> tuple[Finding, ...]:
    """Make findings, the first of each entry and place, loud ones first."""
    names = {each[0] for each in found}
    covered = {
        "state-in-a-container": ("wrapped-forward",),  # which is met again
        "sample-into-buffer": ("aliased-buffers",),  # it is what the writing does
        "stashed-activation": ("state-on-self", "state-in-a-container"),  # made anew
        "embedding-max-norm": ("written-weights",),
    }
    for name, weaker in covered.items():
        if name in names:
            found = [each for each in found if each[0] not in weaker]
    findings: dict[str, Finding] = {}
    for entry, where, *error in found:
        earlier = findings.get(entry)
        if earlier and where not in earlier.where and entry != "random-draws":
            where = f"{earlier.where}, {where}"
        elif earlier:
            continue
        findings[entry] = _finding(entry, where, *error)
    return tuple(sorted(findings.values(), key=lambda each: list(WILL.values()).index(each.will)))


def _finding(entry: str, where: str, error: str = "") -> Finding:
    known = entries().get(entry)
    if known:
        return Finding(where, WILL[known.part], entry, known.cause, known.fix)
    if error == DIFFERS:
        fix = "`func_gradients`, where the comparison says that it is equal."
        return Finding(where, WILL["silent"], entry, error, fix)
    return Finding(where, WILL["loud"], entry, error, "Take the loop for this model.")


def _unequal(
    case: Case, got: dict[str, Tensor], expected: dict[str, Tensor]
) -> tuple[pd.DataFrame, pd.Index]:
    """Compare by name; return the table, and which parameters differ."""
    comparison = compare.table(got, expected)
    if not comparison["equal"].all() and (tolerance := observation.tolerance(case)):
        comparison = compare.table(got, expected, tolerance=tolerance)
    return comparison, comparison.index[~comparison["equal"]]


Compared = tuple[pd.DataFrame | None, str, dict[str, Tensor]]
"""A table, what it says, and the gradients of the loop for the model as it is."""


def _compare(case: Case) -> Compared:
    """Compare `func_gradients` with the loop; in evaluation mode where training is refused."""
    comparison, says, expected = _compare_as_it_is(case)
    if comparison is None and case.model.training:
        with trial.untouched(case.model):
            case.model.eval()
            in_eval, says_in_eval, _ = _compare_as_it_is(case)
        if in_eval is not None:
            return in_eval, f"{says}; in evaluation mode, {says_in_eval}", {}
    return comparison, says, expected


def _compare_as_it_is(case: Case) -> Compared:
    results = {}
    for method in (gradients.func_gradients, gradients.loop_gradients):
        try:
            with trial.untouched(case.model):
                results[method.__name__] = method(*case)
        except ValueError as error:
            return None, f"{method.__name__} refuses: {one_line(error)}", {}
        except Exception as error:  # anything that a model can raise
            return None, f"{method.__name__} raises {describe(error)}", {}
    comparison, wrong = _unequal(case, *results.values())
    if comparison.empty:
        return comparison, "no parameter requires a gradient, so there is nothing to compare", {}
    few = len(case.batch)
    on_few = f"on {few} sample" + ("s" if few > 1 else "")
    says = f"func_gradients is equal for all {len(comparison)} parameters, {on_few}"
    if len(wrong):
        says = f"func_gradients and the loop differ in {inspection.listed(wrong)}, {on_few}"
    return comparison, says, results["loop_gradients"]
