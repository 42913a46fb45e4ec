"""The bare composition, `vmap(grad(loss))` over `functional_call`: its errors and side effects."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap, functional_call, grad, vmap

from helpers.benchmark import each_operation
from helpers.limits.findings import (
    Checks,
    Finding,
    described,
    finding_of,
    format_largest,
    format_names,
)
from helpers.numbers import differences, largest_difference
from helpers.transforms import batches, fallback
from helpers.transforms import randomness as streams
from helpers.transforms.batches import Batch, tensors_in
from helpers.transforms.reach import modules_of
from helpers.transforms.restore import Snapshot, preserved, walk
from helpers.transforms.sequences import Sequences


@dataclass
class Case:
    """A model, its loss and a few samples, to run repeatedly."""

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    batch: Batch
    in_eval: dict[str, nn.Module] = field(default_factory=dict)
    """Modules that raise under transforms in training mode, and run in evaluation mode."""

    def devices(self) -> set[torch.device]:
        """Return the devices on which a forward pass may draw: those of samples and model."""
        tensors = (*self.batch.leaves, *self.model.parameters(), *self.model.buffers())
        return {tensor.device for tensor in tensors}

    @contextmanager
    def put_back(self) -> Iterator[streams.State]:
        """Restore the model and the random generators at the end of a block; yield their state."""
        values = Snapshot(self.model.parameters())
        trainable = []
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                trainable.append(name)
        others = modules_of(self.loss_fn, self.model)
        try:
            with (
                preserved(self.model, trainable, others) as snapshot,
                streams.streams_kept(self.devices(), snapshot.generators),
            ):
                for module in self.in_eval.values():
                    module.eval()
                yield streams.random_state(self.devices())
        finally:
            values.restore()


_REGISTRIES = ("_parameters", "_buffers", "_modules")
"""The attributes in which a module holds what `named_parameters` and its like list."""
SECOND_CALL = "a second call"
RAISES = "vmap(grad) raises"
"""Why checks of the composition's gradients are not made."""


def run_composition(case: Case, checks: Checks) -> dict[str, Tensor] | None:
    """Run the composition; return the gradients, or None if it raises.

    A module that raises in training mode is put into evaluation mode, and all starts again, so that
    what comes after it is found as well.
    """
    raised: list[Finding] = []
    grads = None
    if any(isinstance(leaf, Sequences) for leaf in case.batch.leaves):
        raised.append(Finding("data", "packed, but vmap takes only tensors", "data-dependent"))
    is_over = bool(raised)
    while grads is None and not is_over:
        try:
            with case.put_back() as before:
                grads = _run_twice(case, before, checks)
        except Exception as error:
            if not fallback.leads_to_next_way(error):
                raise
            finding = finding_of(error, case.model)
            if finding in raised:  # evaluation mode did not help
                case.in_eval.popitem()
                break
            raised.append(finding)
            name = "" if finding.where == "the model" else finding.where
            module = dict(case.model.named_modules()).get(name)
            is_over = module is None or not module.training
            if not is_over:
                case.in_eval[finding.where] = module
    checks.findings[:0] = raised  # they came first
    if grads is None:
        checks.skipped[SECOND_CALL] = RAISES
    return grads


def _gradients(case: Case) -> dict[str, Tensor]:
    """Compute `{name: (B, *shape)}` as PyTorch's tutorial does."""
    params = {}
    for name, parameter in case.model.named_parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            params[name] = parameter.detach()
    buffers = dict(case.model.named_buffers())

    def compute_loss(params: dict, buffers: dict, sample: tuple[Tensor, ...]) -> Tensor:
        def model(*args: Any, **kwargs: Any) -> Any:
            return functional_call(case.model, params | buffers, args, kwargs)

        data, targets = case.batch.of_one(sample)
        return case.loss_fn(batches.call(model, data), targets)

    # Copies, since a forward pass may write into its inputs.
    leaves = tuple(leaf.clone() for leaf in case.batch.leaves)
    compute = vmap(grad(compute_loss), in_dims=(None, None, 0))
    return compute(params, buffers, leaves)


def _run_twice(case: Case, before: streams.State, checks: Checks) -> dict[str, Tensor]:
    """Compute gradients twice, and note what the first run changed in the model."""
    params = dict(case.model.named_parameters())
    buffers = dict(case.model.named_buffers())
    values = {}
    for name, tensor in (params | buffers).items():
        values[name] = tensor.detach().clone()
    grads = _gradients(case)

    findings = list(left_behind(case.model))
    findings += _written(params, values, "written-weights")
    findings += _written(buffers, values, "aliased-buffers")
    after = streams.random_state(case.devices())
    if not streams.alike(before, after, outside_torch=True):
        measured = "drew from NumPy's or Python's stream once, for all samples"
        findings.append(Finding("the model", measured, "numpy-draws"))
    if findings:
        checks.skipped[SECOND_CALL] = "the first one changed something"
        checks.findings.extend(findings)
    else:
        # Nothing visible has changed, so from the same random numbers come the same gradients.
        streams.restore_random_state(before)
        checks.make(SECOND_CALL, _run_again, case, grads)
    return grads


def _written(
    tensors: dict[str, Tensor], values: dict[str, Tensor], entry: str
) -> Iterator[Finding]:
    """Find the tensors that no longer have the values from before."""
    changes = {}
    for name, tensor in tensors.items():
        change = largest_difference(tensor, values[name])
        if change:
            changes[name] = change
    if changes:
        measured = f"changed in the model, by up to {max(changes.values()):.1e}"
        yield Finding(format_names(changes), measured, entry)


def _run_again(case: Case, grads: dict[str, Tensor]) -> Iterator[Finding]:
    """Compute gradients again; find operations without a batching rule, and other gradients."""
    fallbacks: dict[str, str] = {}
    with each_operation(_noting_fallbacks(case.model, fallbacks)):
        grads_again = _gradients(case)
    if fallbacks:
        modules = sorted(set(fallbacks.values()) - {""})
        where = format_names(modules) or "the loss or the backward pass"
        measured = f"no batching rule for {format_names(fallbacks)}"
        yield Finding(where, measured, "operator-fallback")
    wrong = differences(grads_again, grads)  # with a tolerance: GPU kernels may sum in any order
    if wrong:
        measured = f"a second call gives other gradients, {format_largest(wrong)}"
        yield Finding(format_names(wrong), measured, "state-on-self")


def _noting_fallbacks(model: nn.Module, fallbacks: dict[str, str]) -> Callable[..., None]:
    """Note the operations for which `vmap` has no rule, each with the module that calls it.

    `vmap` then runs the operation in a loop, on slices that it selects just before. A backward
    operation is attributed to the module of its forward one.
    """
    # No public name tells which operations `vmap` has a rule for.
    from torch._C import DispatchKey  # noqa: PLC2701

    names = {}
    for name, module in model.named_modules():
        names[id(module)] = name or "the model"
    slices: list[Tensor] = []

    def note(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if func is torch.ops.aten.select.int:
            slices.append(result)
            return
        operands = set(map(id, tensors_in([args, kwargs])))
        takes_slices = not operands.isdisjoint(map(id, slices))
        slices.clear()
        if takes_slices and not func.has_kernel_for_dispatch_key(DispatchKey.FuncTorchBatched):
            operation = func.name().partition(".")[0]
            fallbacks.setdefault(operation, _calling_module(names))

    return note


def _calling_module(names: dict[int, str]) -> str:
    """Name the innermost module whose code is running; `""` if there is none."""
    frame = inspect.currentframe()
    while frame:
        owner = frame.f_locals.get("self")
        if id(owner) in names:
            return names[id(owner)]
        frame = frame.f_back
    return ""


def left_behind(model: nn.Module) -> Iterator[Finding]:
    """Find a transform's tensors in place of the model's, and stored ones that raise if used."""
    replaced = []
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if debug_unwrap(tensor, recurse=False) is not tensor:
                replaced.append(name)
    if replaced:
        measured = "a tensor of the transform is in its place"
        yield Finding(format_names(replaced), measured, "shared-layer")
    for module_name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):  # its attributes are not Python's
            continue
        for name, value in vars(module).items():
            error = None if name in _REGISTRIES else _error_of_use(value)
            if error is not None:
                where = f"{module_name}.{name}".lstrip(".")
                measured = f"left in the model, raises {described(error)}"
                yield Finding(where, measured, "escaped-tensor")


def _error_of_use(value: Any) -> RuntimeError | None:
    """Return what a tensor in a value raises when it is used, if one does."""
    for part in walk([value], []):
        try:
            if isinstance(part, Tensor):
                part.clone()
        except RuntimeError as error:
            return error
    return None
