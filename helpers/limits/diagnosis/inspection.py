"""What can be seen in a model without running it."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap

from helpers.transforms.batches import tensors_in
from helpers.transforms.checks import BATCH_NORM

Found = tuple[str, str]
"""The name of an entry, and the place in the model."""
# By the names of their types: to import that of compiled models takes seconds.
_WRAPPERS = {
    "DataParallel": ("data-parallel", "module"),
    "DistributedDataParallel": ("data-parallel", "module"),
    "OptimizedModule": ("", "_orig_mod"),
}


def unrunnable(model: nn.Module) -> Iterator[Found]:
    """Find what has to be mended before the model can be copied and run."""
    if isinstance(model, torch.jit.ScriptModule):
        yield "scripted-module", "the model"
        return
    for name, module in model.named_modules():
        lazy = isinstance(module, nn.modules.lazy.LazyModuleMixin)
        if lazy and module.has_uninitialized_params():
            yield "lazy-module", name or "the model"
    for place, tensor, owned in _tensors(model):
        if debug_unwrap(tensor, recurse=False) is not tensor:
            yield "shared-layer" if owned else "stashed-activation", f"{place}, left dead"


def unwrap(model: nn.Module) -> tuple[nn.Module, list[Found]]:
    """Return the model inside `DataParallel` and `torch.compile`, and what was taken off."""
    found: list[Found] = []
    while type(model).__name__ in _WRAPPERS:
        entry, attribute = _WRAPPERS[type(model).__name__]
        if entry:
            found.append((entry, "the model"))
        model = getattr(model, attribute)
    return model, found


def structure(model: nn.Module) -> Iterator[Found]:
    """Find what transforms do not heed, or harm, without raising."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    for module, several in names.items():
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if len(several) > 1 and tensors:
            yield "shared-layer", listed(several)
    for name, module in model.named_modules():
        if isinstance(module, BATCH_NORM) and module.running_mean is None:
            yield "replaced-batchnorm", name or "the model"
    stored = [place for place, each, own in _tensors(model) if not own and not each.is_leaf]
    if stored:
        yield "state-in-a-container", listed(stored)
    parameters = list(model.named_parameters())
    frozen = [name for name, p in parameters if not p.requires_grad]
    if frozen and len(frozen) < len(parameters):
        yield "frozen-parameters", listed(frozen)
    hooked = [name for name, p in parameters if p._backward_hooks or p._post_accumulate_grad_hooks]
    if hooked:
        yield "parameter-hooks", listed(hooked)
    low = [name for name, p in parameters if p.dtype in (torch.float16, torch.bfloat16)]
    if low:
        yield "low-precision", listed(low)


def listed(names: Iterable[str], most: int = 3) -> str:
    """Write a few names, and how many more there are."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """List all tensors that a model holds: place, tensor, and whether it is registered."""
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        for own in (module.named_parameters, module.named_buffers):
            for key, tensor in own(recurse=False, remove_duplicate=False):
                yield prefix + key, tensor, True
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                for tensor in tensors_in(value):
                    yield prefix + key, tensor, False


def attributes(model: nn.Module) -> dict[str, list[Tensor]]:
    """Return the tensors that modules keep as plain attributes, by place."""
    found: dict[str, list[Tensor]] = {}
    for place, tensor, owned in _tensors(model):
        if not owned:
            found.setdefault(place, []).append(tensor)
    return found
