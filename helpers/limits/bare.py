"""The bare composition, `vmap(grad(loss))` over `functional_call`: its errors and side effects."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap, functional_call, grad, vmap

from helpers.benchmark import each_operation
from helpers.limits.findings import Finding, described, finding_of, format_largest, format_names
from helpers.numbers import differences, largest_difference
from helpers.transforms import batches, fallback
from helpers.transforms import randomness as streams
from helpers.transforms.batches import Batch
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

    @contextmanager
    def put_back(self) -> Iterator[streams.State]:
        """Restore the model and the random generators at the end of a block; yield their state."""
        values = Snapshot(self.model.parameters())
        trainable = [name for name, p in self.model.named_parameters() if p.requires_grad]
        device = self.batch.leaves[0].device
        try:
            with (
                preserved(self.model, trainable, self.loss_fn) as snapshot,
                streams.streams_kept(device, snapshot.generators),
            ):
                for module in self.in_eval.values():
                    module.eval()
                yield streams.random_state(device)
        finally:
            values.restore()


def run(case: Case) -> tuple[list[Finding], dict[str, Tensor] | None]:
    """Run the composition; modules that raise in training mode run in evaluation mode."""
    if any(isinstance(leaf, Sequences) for leaf in case.batch.leaves):
        return [Finding("data", "packed, but vmap takes only tensors", "data-dependent")], None
    findings: list[Finding] = []
    while True:
        try:
            with case.put_back() as begin:
                more, bare = _run_twice(case, begin)
            return findings + more, bare
        except Exception as error:
            if not fallback.leads_to_loop(error):
                raise
            finding = finding_of(error, case.model)
        if finding in findings:  # evaluation mode did not help
            case.in_eval.popitem()
            return findings, None
        findings.append(finding)
        name = "" if finding.where == "the model" else finding.where
        module = dict(case.model.named_modules()).get(name)
        if module is None or not module.training:
            return findings, None
        case.in_eval[finding.where] = module


def _gradients(case: Case) -> dict[str, Tensor]:
    """Compute `{name: (B, *shape)}` as PyTorch's tutorial does."""
    named = dict(case.model.named_parameters())
    params = {
        name: p.detach() for name, p in named.items() if p.is_floating_point() or p.is_complex()
    }

    def compute_loss(params: dict, buffers: dict, sample: tuple[Tensor, ...]) -> Tensor:
        def swapped(*args: Any, **named: Any) -> Any:
            return functional_call(case.model, params | buffers, args, named)

        data, targets = case.batch.of_one(sample)
        return case.loss_fn(batches.call(swapped, data), targets)

    leaves = tuple(leaf.clone() for leaf in case.batch.leaves)
    compute = vmap(grad(compute_loss), in_dims=(None, None, 0))
    return compute(params, dict(case.model.named_buffers()), leaves)


def _run_twice(case: Case, begin: streams.State) -> tuple[list[Finding], dict[str, Tensor]]:
    """Compute gradients twice, and note what the first run changed in the model."""
    model, device = case.model, case.batch.leaves[0].device
    params, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    before = params | buffers
    values = {name: tensor.detach().clone() for name, tensor in before.items()}
    bare = _gradients(case)
    findings = [*left_behind(model)]
    off = {name: largest_difference(before[name], values[name]) for name in before}
    for entry, tensors in (("written-weights", params), ("aliased-buffers", buffers)):
        if written := [name for name in tensors if off[name]]:
            measured = f"changed in the model, by up to {max(off[x] for x in written):.1e}"
            findings.append(Finding(format_names(written), measured, entry))
    if not streams.alike(begin, streams.random_state(device), outside_torch=True):
        measured = "drew from NumPy's or Python's stream once, for all samples"
        findings.append(Finding("the model", measured, "numpy-draws"))
    if not findings:
        streams.restore_random_state(begin)
        slow: dict[str, str] = {}
        with each_operation(_noting_fallbacks(model, slow)):
            again = _gradients(case)
        if slow:  # a backward operation is attributed to its forward one's module
            where = format_names(sorted({*slow.values()} - {""})) or "the loss or the backward pass"
            findings.append(
                Finding(where, f"no batching rule for {format_names(slow)}", "operator-fallback")
            )
        if wrong := differences(again, bare):  # GPU kernels may sum in any order
            measured = f"a second call gives other gradients, {format_largest(wrong)}"
            findings.append(Finding(format_names(wrong), measured, "state-on-self"))
    return findings, bare


def _noting_fallbacks(model: nn.Module, fallbacks: dict[str, str]) -> Callable[..., None]:
    """Note the operations for which `vmap` has no rule and runs slices in a loop."""
    from torch._C import DispatchKey

    names = {id(module): name or "the model" for name, module in model.named_modules()}
    slices: list[Tensor] = []

    def note(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if func is torch.ops.aten.select.int:
            slices.append(result)
            return
        operands = {*map(id, batches.tensors_in([args, kwargs]))} & {*map(id, slices)}
        slices.clear()
        if operands and not func.has_kernel_for_dispatch_key(DispatchKey.FuncTorchBatched):
            frame, module_name = sys._getframe(), ""
            while frame and not module_name:
                module_name = names.get(id(frame.f_locals.get("self")), "")
                frame = frame.f_back
            fallbacks.setdefault(func.name().partition(".")[0], module_name)

    return note


def left_behind(model: nn.Module) -> Iterator[Finding]:
    """Find a transform's tensors in place of the model's, and stored ones that raise if used."""
    readers = (model.named_parameters, model.named_buffers)
    now = [pair for named in readers for pair in named(remove_duplicate=False)]
    if replaced := [
        name for name, tensor in now if debug_unwrap(tensor, recurse=False) is not tensor
    ]:
        measured = "a tensor of the transform is in its place"
        yield Finding(format_names(replaced), measured, "shared-layer")
    for name, module in model.named_modules():
        attributes = {} if isinstance(module, torch.jit.ScriptModule) else vars(module)
        for key in attributes.keys() - {"_parameters", "_buffers", "_modules"}:
            for tensor in walk([attributes[key]]):
                try:
                    if isinstance(tensor, Tensor):
                        tensor.clone()
                except RuntimeError as error:
                    where, measured = f"{name}.{key}".lstrip("."), described(error)
                    yield Finding(where, f"left in the model, raises {measured}", "escaped-tensor")
                    break
