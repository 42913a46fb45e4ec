"""What a model does that transforms do not follow, and that no error tells: found by running it.

Reaching its parameters by other ways than as registered, writing into them, keeping state on
`self`, and normalising what is then read in another order.
"""

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from helpers.compare import TOLERANCES, largest_error
from helpers.limits.diagnosis.inspection import Found, listed
from helpers.limits.diagnosis.trial import norms_in_eval, untouched
from helpers.limits.diagnosis.watch import Case
from helpers.transforms.batches import Batch, call, tensors_in
from helpers.transforms.checks import BATCH_NORM, INSTANCE_NORM
from helpers.transforms.known_wrong import Watched
from helpers.transforms.randomness import streams_kept
from helpers.transforms.restore import walk
from helpers.transforms.samples import graph


def observe(case: Case) -> Iterator[Found]:
    """Find habits in runs of one sample."""
    with untouched(case.model), Watched():
        found = _observed(case, case.batch[:1])
    yield from found
    yield from _transposed(case)


def _observed(case: Case, sample: Batch) -> list[Found]:
    """Run a sample; return what was found."""
    model = case.model
    norms_in_eval(model)
    own, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    ids = {id(tensor) for tensor in (*own.values(), *buffers.values())}
    # As `functional_call` swaps them: what the loss depends on besides, was out of its reach.
    swapped = {name: tensor.detach().clone() for name, tensor in own.items()}
    versions = {name: tensor._version for name, tensor in swapped.items()}
    copies = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    kept, modules = _kept(model), {*model.modules()}
    try:
        with streams_kept(sample.leaves[0].device):
            data, targets = sample.whole()
            predictions = call(
                lambda *args, **named: functional_call(model, swapped | copies, args, named), data
            )
            met, in_both = (
                _behind(value, own) for value in (predictions, case.loss_fn(predictions, targets))
            )
    except Exception:  # it runs by itself, and what refuses to be swapped is named elsewhere
        return []
    after = _kept(model)
    changed = [place for place, each in kept.items() if each.changed(ids)]
    changed += [
        place
        for place, each in after.items()
        if place not in kept and not isinstance(each.value, Tensor) and each.module in modules
    ]
    inside = {id(value) for each in kept.values() for value in walk([each.value])}
    held = [name for name in met if id(own[name]) in inside]
    if in_loss := in_both - met:
        held.append(f"loss_fn ({listed(sorted(in_loss))})")
    written = [
        name
        for name, tensor in swapped.items()
        if tensor._version != versions[name] or not torch.equal(tensor, own[name])
    ]
    places = {
        "wrapped-forward": sorted(met.difference(held)),
        "parameter-in-a-list": sorted(held),
        "state-on-self": changed,
        "written-weights": written,
    }
    return [(entry, listed(each)) for entry, each in places.items() if each]


def _behind(value: Any, own: dict[str, Tensor]) -> set[str]:
    """Return the names of the parameters in the graph of the tensors in a value."""
    nodes = (node for tensor in tensors_in(value) for node in graph(tensor))
    met = {id(getattr(node, "variable", None)) for node in nodes}
    return {name for name, parameter in own.items() if id(parameter) in met}


def _transposed(case: Case) -> Iterator[Found]:
    """Find normalisations whose gradient is another one where memory is put in order."""
    norms = [
        name or "the model"
        for name, module in case.model.named_modules()
        if isinstance(module, BATCH_NORM | INSTANCE_NORM)
    ]
    if not norms:
        return
    gradients, of_tokens = [], []
    for mode in (Watched(), nullcontext()):
        with untouched(case.model):
            norms_in_eval(case.model)
            leaves = [p for p in case.model.parameters() if p.requires_grad]
            for module in case.model.modules():
                if isinstance(module, BATCH_NORM):
                    module.register_forward_pre_hook(
                        lambda _, images: of_tokens.extend(not x.is_contiguous() for x in images)
                    )
            try:
                data, targets = case.batch[:1].whole()
                with streams_kept(case.batch.leaves[0].device), mode:
                    loss = case.loss_fn(call(case.model, data), targets)
                    if not loss.requires_grad:
                        return
                    found = torch.autograd.grad(loss, leaves, materialize_grads=True)
            except Exception:  # the loss called backward(), or a checkpoint refuses
                return
        gradients.append(torch.cat([each.flatten() for each in found]))
    if largest_error(*gradients[::-1]) > 100 * TOLERANCES.get(gradients[0].dtype, 1e-5):
        entry = "normalisation-of-tokens" if any(of_tokens) else "normalisation-transposed"
        yield entry, listed(norms)


# What swapping a parameter changes by itself; the last two are of recurrent layers.
_REGISTERED = {"_parameters", "_buffers", "_modules", "_flat_weights", "_flat_weight_refs"}


class _Attribute:
    """One attribute of a module, as it is now."""

    def __init__(self, module: nn.Module, key: str) -> None:
        self.module, self._key = module, key
        self.value = vars(module).get(key)
        self._inside = _inside(self.value)

    def changed(self, registered: Collection[int]) -> bool:
        """Return whether it, or what is in it but for registered tensors' `id`, is another one."""
        value = vars(self.module).get(self._key)
        if isinstance(value, Tensor) and value is not self.value:
            return False  # a stash, or a rebound tensor: other findings
        now = _inside(value)
        return len(now) != len(self._inside) or any(
            one is not other or (id(one) not in registered and not _alike(holds, held))
            for (one, holds), (other, held) in zip(now, self._inside, strict=True)
        )


def _inside(value: Any) -> list[tuple[Any, list[Any]]]:
    """List the objects in a value, each with what it holds."""
    return [(each, _held(each)) for each in (value, *walk([value]))]


def _held(value: Any) -> list[Any]:
    if isinstance(value, Tensor):
        return [None if value.is_inference() else value._version]
    if isinstance(value, np.ndarray):
        return [value.tobytes()]
    if isinstance(value, dict):
        return [*dict.keys(value), *dict.values(value)]
    kinds = (kind for kind in (list, tuple, set, deque) if isinstance(value, kind))
    return [each for kind in kinds for each in kind.__iter__(value)]


def _alike(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(
        a is b or (isinstance(a, int | bytes) and a == b) for a, b in zip(now, then, strict=True)
    )


def _kept(model: nn.Module) -> dict[str, _Attribute]:
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for key in vars(module):
            if key not in _REGISTERED:
                found[f"{name}.{key}" if name else key] = _Attribute(module, key)
    return found
