"""What a model does that transforms do not follow, and that no error tells: found by running it.

Reaching its parameters by other ways than as registered, writing into them, keeping state on
`self`, and normalising what is then read in another order.
"""

import copy
from collections.abc import Collection, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from helpers.compare import TOLERANCES, largest_error
from helpers.limits.diagnosis.inspection import Found, listed
from helpers.limits.diagnosis.trial import norms_in_eval, trainable
from helpers.limits.diagnosis.watch import Case
from helpers.transforms.batches import Batch, call
from helpers.transforms.call import ParameterAliases
from helpers.transforms.checks import BATCH_NORM, INSTANCE_NORM
from helpers.transforms.mended import Cured
from helpers.transforms.randomness import streams_kept
from helpers.transforms.restore import Snapshot, preserved, walk


def observe(case: Case) -> Iterator[Found]:
    """Find habits in runs of one sample."""
    cured = Cured()
    with preserved(case.model, trainable(case.model)), cured:
        found = _observed(case, case.batch[:1])
    yield from found
    if cured.met_norm:
        yield from _transposed(case)


def _observed(case: Case, sample: Batch) -> list[Found]:
    """Run a sample; return what was found."""
    model = case.model
    norms_in_eval(model)
    own, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    ids = {id(tensor): name for name, tensor in (*own.items(), *buffers.items())}
    # As `functional_call` swaps them: what is met besides, was out of its reach.
    swapped = {name: tensor.detach().clone() for name, tensor in own.items()}
    versions = {name: tensor._version for name, tensor in swapped.items()}
    copies = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    kept, modules = _kept(model), {*model.modules()}
    aliases = ParameterAliases(ids, swapped | copies)
    try:
        with streams_kept(sample.leaves[0].device), aliases:
            data, targets = sample.whole()
            predictions = call(
                lambda *args, **named: functional_call(model, swapped | copies, args, named), data
            )
            met = aliases.met.copy()
            case.loss_fn(predictions, targets)
    except Exception:  # it runs by itself, and what refuses to be swapped is named elsewhere
        return []
    after = _kept(model)
    changed = [place for place, each in kept.items() if each.changed(ids.keys())]
    changed += [
        place
        for place, each in after.items()
        if place not in kept and not isinstance(each.value, Tensor) and each.module in modules
    ]
    inside = {id(value) for each in kept.values() for value in walk([each.value])}
    held = [name for number, name in ids.items() if name in met and number in inside]
    closed = met.difference(held) | _met_by_a_copy(model, ids, sample)
    if in_loss := aliases.met - met:
        held.append(f"loss_fn ({listed(sorted(in_loss))})")
    written = [
        name
        for name, tensor in swapped.items()
        if tensor._version != versions[name] or not torch.equal(tensor, own[name])
    ]
    places = {
        "wrapped-forward": sorted(closed),
        "parameter-in-a-list": sorted(held),
        "state-on-self": changed,
        "written-weights": written,
    }
    return [(entry, listed(each)) for entry, each in places.items() if each]


def _met_by_a_copy(model: nn.Module, ids: dict[int, str], sample: Batch) -> set[str]:
    """Return the names of tensors of the model itself that a deep copy of it uses."""
    aliases = ParameterAliases(ids, dict(model.named_parameters()))
    try:
        duplicate = copy.deepcopy(model)
        with streams_kept(sample.leaves[0].device), aliases:
            call(duplicate, sample.whole()[0])
    except Exception:  # whatever a model holds may refuse to be copied
        return set()
    return aliases.met


def _transposed(case: Case) -> Iterator[Found]:
    """Find normalisations whose gradient is another one where memory is put in order."""
    gradients, of_tokens = [], []
    for mode in (Cured(), nullcontext()):
        with preserved(case.model, trainable(case.model)):
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
        norms = [
            name or "the model"
            for name, module in case.model.named_modules()
            if isinstance(module, BATCH_NORM | INSTANCE_NORM)
        ]
        entry = "normalisation-of-tokens" if any(of_tokens) else "normalisation-transposed"
        yield entry, listed(norms or ["the model"])


# What swapping a parameter changes by itself; the last two are of recurrent layers.
_REGISTERED = {"_parameters", "_buffers", "_modules", "_flat_weights", "_flat_weight_refs"}


class _Attribute:
    """One attribute of a module, as it is now."""

    def __init__(self, module: nn.Module, key: str) -> None:
        self.module, self._key = module, key
        self.value = vars(module).get(key)
        self._snapshot = Snapshot([self.value])

    def changed(self, registered: Collection[int]) -> bool:
        """Return whether it, or what is in it but for registered tensors' `id`, is another one."""
        value = vars(self.module).get(self._key)
        if isinstance(value, Tensor) and value is not self.value:
            return False  # a stash, or a rebound tensor: other findings
        return value is not self.value or bool(self._snapshot.written().difference(registered))


def _kept(model: nn.Module) -> dict[str, _Attribute]:
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for key in vars(module):
            if key not in _REGISTERED:
                found[f"{name}.{key}" if name else key] = _Attribute(module, key)
    return found
