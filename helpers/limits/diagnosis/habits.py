"""What a model does that transforms do not follow, and that no error tells: found by running it.

Reaching its parameters by other ways than as registered, writing into them, keeping state on
`self`, and normalising what is then read in another order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from helpers.compare import TOLERANCES, largest_error
from helpers.limits.bare import Case
from helpers.limits.diagnosis.inspection import Found, listed
from helpers.transforms import modules, outside, samples, state
from helpers.transforms.randomness import streams_kept


@dataclass(frozen=True)
class Habit:
    """A cause that the gallery has no entry for."""

    part: str
    cause: str
    fix: str


BESIDE = "the class or the file of the model"
"""Where state is kept that is not on `self`."""
HABITS = {
    "written-weights": Habit(
        "silent",
        "The forward writes into a parameter. Detached parameters share the model's storage, so "
        "the bare composition changes the model.",
        "Pass clones, or write outside of the forward; or take `func_gradients`.",
    ),
    "state-on-self": Habit(
        "silent",
        "The forward keeps state on `self`, in its class or in its file. Under `vmap` it runs once "
        "for all samples, and what it keeps is there in the next call, or in the next chunk.",
        "Keep nothing between calls; or take `func_gradients`, which undoes it.",
    ),
    "memory-format": Habit(
        "loud",
        "The forward asks for an order in memory other than the usual one, such as "
        "`contiguous(memory_format=torch.channels_last)`, which `vmap` does not know.",
        "Convert model and data outside of the forward; or take `func_gradients`, which goes one "
        "sample after the other there.",
    ),
    "nested-tensors": Habit(
        "loud",
        "In evaluation mode, `nn.TransformerEncoder` turns what a padding mask covers into nested "
        "tensors, for which `vmap` has no rule.",
        "`nn.TransformerEncoder(..., enable_nested_tensor=False)`; or take `func_gradients`.",
    ),
}


def observe(case: Case) -> Iterator[Found]:
    """Find habits in runs of one sample."""
    stand_in = modules.StandIn(case.model)
    _norms_in_eval(stand_in.model)
    # As `functional_call` swaps them: what is met besides, was out of its reach.
    swapped = {name: tensor.detach().clone() for name, tensor in stand_in.params.items()}
    versions = {name: tensor._version for name, tensor in swapped.items()}
    kept = _kept(stand_in.model)
    beside = outside.Outside(stand_in.model.modules())
    held_there = state.Kept(beside.holders)
    reach = stand_in.reach(swapped | stand_in.buffers)
    try:
        with streams_kept(case.data.device), samples.eager(), reach:
            modules.call(stand_in.model, swapped | stand_in.buffers, case.data[:1])
    except Exception:  # it runs by itself, and what refuses to be swapped is named elsewhere
        stand_in.undo()
        return
    after = _kept(stand_in.model)
    changed = [place for place, each in kept.items() if each.changed()]
    changed += [place for place in after if place not in kept and not after[place].is_tensor]
    if beside.changed() or held_there.changed():
        changed.append(BESIDE)
    stand_in.undo()
    sources = {id(tensor) for tensor in (*case.model.parameters(), *case.model.buffers())}
    closed = [name for number, name in reach.met.items() if number in sources]
    held = [name for number, name in reach.met.items() if number not in sources]
    written = [
        name
        for name, tensor in swapped.items()
        if tensor._version != versions[name] or not torch.equal(tensor, stand_in.params[name])
    ]
    for entry, places in (
        ("wrapped-forward", sorted(closed)),
        ("parameter-in-a-list", sorted(held)),
        ("state-on-self", changed),
        ("written-weights", written),
    ):
        if places:
            yield entry, listed(places)
    if reach.met_norm:
        yield from _transposed(case, case.data[:1], case.targets[:1])


def _transposed(case: Case, sample: Tensor, target: Tensor) -> Iterator[Found]:
    """Find normalisations whose gradient is another one where memory is put in order."""
    gradients, of_tokens = [], []
    for cure in (True, False):
        stand_in = modules.StandIn(case.model)
        _norms_in_eval(stand_in.model)
        leaves = [p.requires_grad_() for p in stand_in.params.values() if p.is_floating_point()]
        reach = stand_in.reach(stand_in.params | stand_in.buffers, cure=cure)
        for module in stand_in.model.modules():
            if isinstance(module, _BatchNorm):
                module.register_forward_pre_hook(
                    lambda _, images: of_tokens.extend(not each.is_contiguous() for each in images)
                )
        try:
            with streams_kept(sample.device), samples.eager(), reach:
                loss = case.loss_fn(stand_in.model(sample), target)
                if not loss.requires_grad:
                    return
                found = torch.autograd.grad(loss, leaves, materialize_grads=True)
        except Exception:  # the loss called backward(), or a checkpoint refuses
            return
        finally:
            stand_in.undo()
        gradients.append(torch.cat([each.flatten() for each in found]))
    if largest_error(*gradients[::-1]) > 100 * TOLERANCES.get(gradients[0].dtype, 1e-5):
        norms = [
            name or "the model"
            for name, module in case.model.named_modules()
            if isinstance(module, _BatchNorm | _InstanceNorm)
        ]
        entry = "normalisation-of-tokens" if any(of_tokens) else "normalisation-transposed"
        yield entry, listed(norms or ["the model"])


def _norms_in_eval(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, _BatchNorm | _InstanceNorm):
            module.eval()


# What swapping a parameter changes by itself; the last two are of recurrent layers.
_REGISTERED = {"_parameters", "_buffers", "_modules", "_flat_weights", "_flat_weight_refs"}


class _Attribute:
    """One attribute of a module, as it is now."""

    def __init__(self, module: nn.Module, key: str) -> None:
        self._module, self._key = module, key
        self._value = vars(module).get(key)
        self._inside = state.Kept([self._value], [*module.parameters(), *module.buffers()])

    @property
    def is_tensor(self) -> bool:
        """Say whether it is a tensor: if a forward rebinds it, it is a stash."""
        return isinstance(self._value, Tensor)

    def changed(self) -> bool:
        """Say whether it is another one, or another one inside."""
        value = vars(self._module).get(self._key)
        if isinstance(value, Tensor) and value is not self._value:
            return False  # a stash, or a rebound tensor: other findings
        return value is not self._value or self._inside.changed()


def _kept(model: nn.Module) -> dict[str, _Attribute]:
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for key in vars(module):
            if key not in _REGISTERED:
                found[f"{name}.{key}" if name else key] = _Attribute(module, key)
    return found
