"""A self-check of one's own model: its per-sample gradients in three ways, and what differs.

Everything that is said was measured on a few samples. Nothing is read off the model's code.
"""

import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import debug_unwrap, functional_call, grad, vmap

from helpers import compare, gradients
from helpers.limits.lookup import entries, markdown, match
from helpers.transforms import batches, checks
from helpers.transforms import randomness as streams
from helpers.transforms.batches import Batch, Tree, tensors_in
from helpers.transforms.fallback import find_place
from helpers.transforms.restore import Snapshot, preserved, walk
from helpers.transforms.sequences import Sequences
from helpers.transforms.switches import uncompiled

FEW = 4  # samples are run, at most
ELSEWHERE = "the loss or the backward pass"
COLUMNS = ["where", "measured", "entry", "cause", "way out"]
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Finding:
    """One thing that was measured, and that the bare composition does not take as it is."""

    where: str
    """The modules, parameters or buffers, by name; or the loss."""
    measured: str
    """What was seen, with its numbers or its message."""
    entry: str = "unknown"
    """The name of its entry in lesson 6, if one covers it."""

    @property
    def row(self) -> tuple[str, ...]:
        """The finding, with the cause and the way out that its entry names."""
        known = entries().get(self.entry)
        explained = (known.cause, known.fix) if known else ("", "")
        return (self.where, self.measured, self.entry, *explained)


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and how `func_gradients` compares with the loop."""

    findings: tuple[Finding, ...]
    comparison: pd.DataFrame | None
    """The table of `helpers.compare`; `None` where one of the two refused."""
    conclusion: str
    """What the comparison says, in one sentence."""

    def __str__(self) -> str:
        lines = []
        for where, measured, entry, *explained in (each.row for each in self.findings):
            lines += [f"{where}: {measured} ({entry})", *(f"    {x}" for x in explained if x)]
        lines = lines or ["nothing found"]
        return "\n".join([*lines, f"compared with the loop: {self.conclusion}"])

    def _repr_markdown_(self) -> str:
        rows = [(f"`{each.where}`", *each.row[1:]) for each in self.findings]
        found = markdown(COLUMNS, rows) if rows else "Nothing found."
        return f"{found}\n\n**Compared with the loop.** {self.conclusion}."

    __repr__ = __str__


@torch.inference_mode(False)
@torch.enable_grad()
def diagnose(
    model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], data: Tree, targets: Tree = None
) -> Diagnosis:
    """Measure on a few samples what the bare composition of `torch.func` does with a model.

    It compares `vmap(grad)` over `functional_call`, the loop and `func_gradients` on at most four
    samples; the model before and after; rows alone with rows together; and the loss of the batch
    with those of its samples. Model, mode, buffers and random streams are put back as they were.
    What lies in the calling code (a wrong `in_dims`, parameters not detached) it cannot see.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, as in `helpers.gradients`.
        data: `(B, ...)`, or a tree of such tensors; with four samples, more is seen than with one.
        targets: Likewise; `None` where the loss needs none.

    Returns:
        The findings, by module name, and a comparison of `func_gradients` with the loop.

    Raises:
        TypeError: An argument is of a wrong kind.
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
        raise TypeError(f"loss_fn must be a function, and no class, got {loss_fn!r}")
    few = batches.take(model, data=data, targets=targets)[:FEW]
    if not len(few):
        raise ValueError("data must hold a sample at least, got an empty batch")
    if not all(each.isfinite().all() for each in few.tensors.values()):
        raise ValueError("data and targets must be finite, got NaN or infinity")
    checks.check_one_process(model)
    checks.select_parameters(model)
    if dead := [*_replaced(model), *_unusable(model)]:
        return Diagnosis(tuple(dead), None, "not possible before this is mended")
    with warnings.catch_warnings(), uncompiled:
        warnings.simplefilter("ignore")
        return _diagnosed(_Case(model, loss_fn, few))


@dataclass
class _Case:
    """A model and a few samples, which run again and again."""

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    batch: Batch
    in_eval: dict[str, nn.Module] = field(default_factory=dict)
    """Modules that raise under transforms in training mode, and run in evaluation mode."""

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Put the model and the random streams back at the end of a block."""
        values = Snapshot(self.model.parameters())
        trainable = [name for name, p in self.model.named_parameters() if p.requires_grad]
        device = self.batch.leaves[0].device
        try:
            with streams.streams_kept(device), preserved(self.model, trainable):
                for module in self.in_eval.values():
                    module.eval()
                yield
        finally:
            values.restore()

    def bare_gradients(self) -> dict[str, Tensor]:
        """Compute gradients `{name: (B, *shape)}` as PyTorch's tutorial does."""
        named = dict(self.model.named_parameters())
        params = {name: p.detach() for name, p in named.items() if _has_gradient(p)}

        def compute_loss(params: dict, buffers: dict, sample: tuple[Tensor, ...]) -> Tensor:
            def swapped(*args: Any, **named: Any) -> Any:
                return functional_call(self.model, params | buffers, args, named)

            data, targets = self.batch.of_one(sample)
            return self.loss_fn(batches.call(swapped, data), targets)

        leaves = tuple(leaf.clone() for leaf in self.batch.leaves)
        compute = vmap(grad(compute_loss), in_dims=(None, None, 0))
        return compute(params, dict(self.model.named_buffers()), leaves)


def _diagnosed(case: _Case) -> Diagnosis:
    found, bare = _bare(case)
    singles = [_run(case, slice(i, i + 1)) for i in range(len(case.batch))]
    try:
        whole = _run(case, slice(None))
    except ValueError:  # it holds for a batch of one, which is all that is asked of it
        whole = None
    # Two ways may differ by the rounding of the layer that has the lowest precision.
    numbers = [*case.model.parameters(), *tensors_in([run.outputs for run in singles])]
    known = {x.dtype.to_real() for x in numbers if _has_gradient(x)} & compare.TOLERANCES.keys()
    tolerance = max(compare.TOLERANCES[each] for each in known)
    comparison, conclusion, expected = _compared(case, tolerance)
    if bare is not None:
        frozen = [x for x, p in case.model.named_parameters() if x in bare and not p.requires_grad]
        if 0 < len(frozen) < len(bare):
            largest = max(float(bare[name].abs().max()) for name in frozen)
            measured = f"gets a gradient, of up to {largest:.1e}, and requires none"
            found.append(Finding(_listed(frozen), measured, "frozen-parameters"))
        wrong, most = _unequal({name: bare[name] for name in expected}, expected, tolerance)
        if wrong:
            measured = f"differs from the loop, by up to {most:.1e} of the largest entry"
            found.append(Finding(_listed(wrong), measured))
    if whole and not whole.drew and len(singles) > 1:
        far = min(100 * tolerance, 0.1)
        found += _meeting(whole, singles, far) or _weighing(case, whole, singles, far)
    return Diagnosis(tuple(found), comparison, conclusion)


def _bare(case: _Case) -> tuple[list[Finding], dict[str, Tensor] | None]:
    """Run the bare composition; what raises in training mode goes to evaluation mode, and on."""
    if any(isinstance(leaf, Sequences) for leaf in case.batch.leaves):
        return [Finding("data", "packed, and vmap takes tensors alone", "packed-sequence")], None
    found: list[Finding] = []
    while True:
        try:
            with case.put_back(), _fallbacks(case.model, found):
                changed, bare = _run_twice(case)
            return found + changed, bare
        except Exception as error:  # to find out which is the purpose
            finding = _of_error(error, case.model)
        if finding in found:  # evaluation mode was no way out
            case.in_eval.popitem()
            return found, None
        found.append(finding)
        place = "" if finding.where == "the model" else finding.where
        module = dict(case.model.named_modules()).get(place)
        if module is None or not module.training:
            return found, None
        case.in_eval[finding.where] = module


def _run_twice(case: _Case) -> tuple[list[Finding], dict[str, Tensor]]:
    """Compute gradients, see what that changed in the model, and compute them again with it."""
    model, begin = case.model, streams.random_state(case.batch.leaves[0].device)
    params, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    before = params | buffers
    values = {name: tensor.detach().clone() for name, tensor in before.items()}
    bare = case.bare_gradients()
    found = [*_replaced(model), *_unusable(model)]
    off = {name: _error(before[name], values[name]) for name in before}
    for entry, own in (("written-weights", params), ("aliased-buffers", buffers)):
        if written := [name for name in own if off[name]]:
            measured = f"changed in the model, by up to {max(off[x] for x in written):.1e}"
            found.append(Finding(_listed(written), measured, entry))
    if not streams.alike_outside_torch(begin, streams.random_state(case.batch.leaves[0].device)):
        measured = "drew from NumPy's or Python's stream once, for all samples"
        found.append(Finding("the model", measured, "numpy-draws"))
    if not found:
        streams.restore_random_state(begin, case.batch.leaves[0].device)
        wrong, most = _unequal(case.bare_gradients(), bare)
        if wrong:
            said = f"a second call gives other gradients, by up to {most:.1e} of the largest"
            found.append(Finding(_listed(wrong), said, "state-on-self"))
    return found, bare


def _of_error(error: Exception, model: nn.Module) -> Finding:
    """Look up what was raised, by its message and by the end of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, each in enumerate(frames) if not each.filename.startswith(_TORCH)]
    end = "\n".join(f"{f.filename}\n{f.name}\n{f.line}" for f in frames[own[-1] :])
    entry = match(str(error), end)
    name = entry.name if entry else Finding.entry
    return Finding(find_place(error, model), f"raises {_described(error)}", name)


def _described(error: Exception) -> str:
    message = textwrap.shorten(str(error), 100, placeholder=" ...")
    return f"{type(error).__name__}: {message}"


@contextmanager
def _fallbacks(model: nn.Module, found: list[Finding]) -> Iterator[None]:
    """Find in a run that ends well which operations `vmap` runs once for each sample, and where."""
    names = {id(module): name or "the model" for name, module in model.named_modules()}
    heard: dict[str, dict[str, str]] = {}  # by entry, operations and their places

    def hear(message: Warning | str, *_: Any, **__: Any) -> None:
        if "batching rule for" in str(message) and (entry := match(str(message))):
            operation = str(message).partition("batching rule for ")[2].partition(".")[0]
            place, frame = ELSEWHERE, sys._getframe(1)
            while frame and place == ELSEWHERE:
                place = names.get(id(frame.f_locals.get("self")), ELSEWHERE)
                frame = frame.f_back
            heard.setdefault(entry.name, {}).setdefault(operation, place)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = hear
        yield
    for entry, places in heard.items():
        inside = sorted({*places.values()} - {ELSEWHERE})  # a backward belongs to its forward
        said = f"no batching rule for {_listed(places)}"
        found.append(Finding(_listed(inside) or ELSEWHERE, said, entry))


def _replaced(model: nn.Module) -> Iterator[Finding]:
    """Find parameters and buffers in whose place a tensor of a transform was left."""
    own = (model.named_parameters, model.named_buffers)
    now = [each for named in own for each in named(remove_duplicate=False)]
    left = [name for name, tensor in now if debug_unwrap(tensor, recurse=False) is not tensor]
    if left:
        yield Finding(
            _listed(left), "a tensor of the transform stands in its place", "shared-layer"
        )


def _unusable(model: nn.Module) -> Iterator[Finding]:
    """Find tensors that modules keep, and that raise when they are used."""
    for name, module in model.named_modules():
        registered = ("_parameters", "_buffers", "_modules")
        kept = {} if isinstance(module, torch.jit.ScriptModule) else vars(module)
        for key in kept.keys() - registered:
            for tensor in walk([kept[key]]):
                try:
                    if isinstance(tensor, Tensor):
                        tensor.clone()
                except RuntimeError as error:
                    where, said = f"{name}.{key}".lstrip("."), _described(error)
                    yield Finding(where, f"left in the model, raises {said}", "stashed-activation")
                    break


@dataclass
class _Run:
    """What the model did with some samples, without transforms."""

    predictions: Any
    loss: Any
    outputs: dict[str, list[Any]]
    """By module, what it returned in each of its calls."""
    drew: bool


def _run(case: _Case, rows: slice) -> _Run:
    outputs: dict[str, list[Any]] = {}
    names = {id(module): name or "the model" for name, module in case.model.named_modules()}

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        if id(module) in names:  # and is no copy, made in the forward
            outputs.setdefault(names[id(module)], []).append(output)

    with case.put_back():
        for module in case.model.modules():
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook
                module.register_forward_hook(keep)
        begin, data = streams.random_state(case.batch.leaves[0].device), case.batch[rows]
        try:
            inputs, targets = data.whole()
            predictions = batches.call(case.model, inputs)
            loss = case.loss_fn(predictions, targets)
        except Exception as error:
            raise ValueError(
                f"the model must run before it can be diagnosed, and on {_samples(len(data))}, "
                f"without transforms, {find_place(error, case.model)} raised {_described(error)}"
            ) from error
        if isinstance(loss, Tensor) and not _has_gradient(loss):
            raise ValueError(f"loss_fn must return a floating point number, got {loss.dtype}")
        drew = not streams.alike(begin, streams.random_state(case.batch.leaves[0].device))
    return _Run(predictions, loss, outputs, drew)


Compared = tuple[pd.DataFrame | None, str, dict[str, Tensor]]


def _compared(case: _Case, tolerance: float) -> Compared:
    """Compare `func_gradients` with the loop; return the table, what it says, and the loop's."""
    results = []
    for method in (gradients.func_gradients, gradients.loop_gradients):
        try:
            with case.put_back():
                results.append(method(case.model, case.loss_fn, case.batch))
        except ValueError as error:
            return None, f"{method.__name__} refuses: {' '.join(str(error).split())}", {}
        except Exception as error:  # anything that a model can raise
            return None, f"{method.__name__} raises {_described(error)}", {}
    table = compare.table(*results, tolerance=tolerance)
    if table.empty:
        return table, "no parameter requires a gradient, so there is nothing to compare", {}
    says = f"func_gradients is equal for all {len(table)} parameters"
    if not table["equal"].all():
        says = f"func_gradients and the loop differ in {_listed(table.index[~table['equal']])}"
    says += f", on {_samples(len(case.batch))}"
    if case.in_eval:
        says += f", with {_listed(case.in_eval)} in evaluation mode"
    return table, says, results[1]


def _unequal(
    got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float | None = None
) -> tuple[list[str], float]:
    """Return which of some gradients differ, and by how much at most."""
    table = compare.table(got, expected, tolerance=tolerance)
    wrong = table["largest error"][~table["equal"]]
    wrong = wrong[[_error(got[name], expected[name]) > 0 for name in wrong.index]]  # NaN is NaN
    return [*wrong.index], max(map(float, wrong), default=0.0)


def _meeting(whole: _Run, singles: list[_Run], far: float) -> list[Finding]:
    """Compare rows alone with rows together; where they differ, find the first module that does."""
    off = _apart(whole.predictions, [each.predictions for each in singles])
    if off <= far:
        return []
    place = "the model"
    for name, (output, *more) in whole.outputs.items():
        calls = [run.outputs.get(name, []) for run in singles]
        once = not more and all(len(each) == 1 for each in calls)
        if once and _apart(output, [each[0] for each in calls]) > far:
            place = name
            break
    said = f"rows alone and rows together differ, by up to {off:.1e} of the largest entry"
    return [Finding(place, said, "samples-that-meet")]


def _apart(together: Any, alone: list[Any]) -> float:
    """Return how far tensors `(B, ...)` are from those `(1, ...)` of the same samples."""
    off = 0.0
    for whole, *rows in zip(tensors_in(together), *map(tensors_in, alone), strict=False):
        shapes = {tuple(row.shape) for row in rows}
        are_rows = shapes == {(1, *whole.shape[1:])} and len(whole) == len(rows)
        if are_rows and _has_gradient(whole):
            off = max(off, compare.largest_error(whole, torch.cat(rows)))
    return off


def _weighing(case: _Case, whole: _Run, singles: list[_Run], far: float) -> list[Finding]:
    """Compare the loss of a batch, and what each row does to it, with the losses of its samples."""

    def alike(loss: Tensor, *others: Tensor) -> bool:
        return min(compare.largest_error(each, loss) for each in others) <= far

    losses = [each.loss for each in singles]
    if not all(isinstance(each, Tensor) and not each.dim() for each in (whole.loss, *losses)):
        return []
    loss, alone = whole.loss.detach(), torch.stack(losses).detach()
    said = f"{loss:.4g} for {len(alone)} samples, which have {alone.mean():.4g} each in the mean"
    rows = _slopes([whole]), _slopes(singles)
    if rows[0] is None or rows[1] is None:
        fits = alike(loss, alone.mean(), alone.sum(), alone[0])
        return [] if fits else [Finding("loss_fn", said)]
    together, apart = rows
    if len(together) != len(apart) or not together[1:].any():  # what is written for a batch of one
        return []
    sizes = apart.square().sum(1)
    shares = (together * apart).sum(1) / sizes
    seen = sizes.sqrt() > far * sizes.sqrt().max()  # the others' shares would be rounding
    shares = torch.where(seen, shares, shares[seen].mean() if seen.any() else 0.0)
    if compare.largest_error(shares[:, None] * apart, together) <= far and alike(
        loss, (shares * alone).sum()
    ):
        if shares.max() - shares.min() <= 0.01 * shares.abs().max():
            return []
        said += f", and of which {', '.join(f'{each:.3g}' for each in shares)} count"
        one_each = all(leaf.dim() == 1 for leaf in tensors_in(case.batch.whole()[1]))
        entry = "class-weights" if one_each else "means-of-unequal-units"
        return [Finding("loss_fn", said, entry)]
    with case.put_back(), suppress(Exception):  # where targets have no such shape, or may not
        data, targets = case.batch.whole()
        predictions = batches.call(case.model, data)
        fitted = case.loss_fn(predictions, targets.view_as(predictions)).detach()
        if targets.shape != predictions.shape and alike(fitted, alone.mean(), alone.sum()):
            return [Finding("loss_fn", said, "loss-that-broadcasts")]
    return [Finding("loss_fn", f"{said}, and no weights of the samples give it")]


def _slopes(runs: list[_Run]) -> Tensor | None:
    """Differentiate losses with respect to the predictions: (B, n), if these are rows."""
    slopes = []
    for run in runs:
        if not isinstance(run.predictions, Tensor) or not run.predictions.is_floating_point():
            return None
        try:
            slopes += torch.autograd.grad(run.loss, run.predictions)
        except RuntimeError:  # the loss does not depend on them, or called backward() itself
            return None
    return torch.cat(slopes).flatten(1) if slopes[0].dim() else None


def _error(now: Tensor, then: Tensor) -> float:
    """Return the largest difference of two tensors of one shape, in which NaN equals NaN."""
    kind = torch.promote_types(then.dtype, torch.float64)
    now, then = (x.detach().to_dense().cpu().to(kind) for x in (now, then))
    changed = ~torch.isclose(now, then, rtol=0, atol=0, equal_nan=True)
    return float((now - then)[changed].abs().max()) if changed.any() else 0.0


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _samples(count: int) -> str:
    return f"{count} sample" + "s" * (count > 1)


def _listed(names: Iterable[str]) -> str:
    """Write three names, and how many more there are."""
    names = list(dict.fromkeys(names))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
