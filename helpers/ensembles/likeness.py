"""What networks must share for one structure to stand for all, and what they must not."""

import hashlib
from collections.abc import Sequence
from enum import Enum
from itertools import chain
from numbers import Number

import torch
from torch import Tensor, nn

from helpers.transforms import checks
from helpers.transforms.known_wrong import SCRIPTED, reached

_CONSTANTS = (str, bytes, Number, Enum, torch.dtype, torch.device, type(None))
_OF_EVERY_MODULE = {*vars(nn.Module()), "_torchdynamo_wrapper_id"}


def tensors_of_each(models: Sequence[nn.Module]) -> list[dict[str, Tensor]]:
    """Collect the parameters and buffers of networks that one structure can stand for."""
    owners: dict[int, tuple[int, str]] = {}
    tensors = []
    for index, model in enumerate(models):
        checks.check_one_process(model)
        checks.check_callable(model)
        if any(isinstance(each, SCRIPTED) for each in reached((model,))):
            raise ValueError("models must hold nothing scripted: torch.vmap gets it wrong")
        ours, theirs = facts_of(models[0]), facts_of(model)
        for place in ours | theirs:
            one, other = (facts.get(place, "missing") for facts in (ours, theirs))
            if one != other:
                raise ValueError(
                    f"models must have one architecture and one mode: {place.strip()} is {one} in "
                    f"model 0 and {other} in model {index}; what differs between networks must be "
                    "a parameter or a buffer"
                )
        tensors.append(dict(model.named_parameters()) | dict(model.named_buffers()))
        for name, tensor in tensors[-1].items():
            owner, theirs = owners.setdefault(tensor.untyped_storage().data_ptr(), (index, name))
            if owner != index and tensor.numel():
                raise ValueError(
                    f"models must not share tensors: {name} of model {index} is {theirs} of model "
                    f"{owner}, and each would get a copy of its own; map over the others and pass "
                    "what is shared with in_dims=None"
                )
    return tensors


def facts_of(model: nn.Module) -> dict[str, str]:
    """Describe what a model is besides the numbers in its parameters and buffers, by place.

    The texts are the same in every process: classes, modes, shapes and ties; of other attributes
    numbers, texts, tensors, and the names of functions.
    """
    facts = {}
    first = {id(t): name for name, t in chain(model.named_parameters(), model.named_buffers())}
    for path, module in model.named_modules():
        prefix = path and f"{path}."
        facts[path or "the model"] = f"{type(module).__name__}({module.extra_repr()})"
        own = chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for name, tensor in own:
            fixed = "" if tensor.requires_grad or tensor.grad_fn else ", fixed"
            tied = "" if first[id(tensor)] == prefix + name else f", tied to {first[id(tensor)]}"
            hooks = f", {len(tensor._backward_hooks)} hooks" if tensor._backward_hooks else ""
            facts[prefix + name] = f"{tuple(tensor.shape)} {tensor.dtype}{fixed}{tied}{hooks}"
        for name, value in vars(module).items():
            if name in _OF_EVERY_MODULE:
                continue
            if _is_constant(value):
                facts[prefix + name] = repr(value)
            elif isinstance(value, Tensor) and value.is_leaf:  # others a forward has computed
                numbers = hashlib.blake2b(content(value), digest_size=8).hexdigest()
                facts[prefix + name] = f"a tensor {tuple(value.shape)}, its numbers' hash {numbers}"
            elif hasattr(value, "__qualname__"):  # a function or a class
                facts[prefix + name] = value.__qualname__
    for path, module in model.named_modules():  # last, since what else differs says more
        facts[f"{path or 'the model'} "] = f"in {'train' if module.training else 'eval'} mode"
    return facts


def content(tensor: Tensor) -> bytes:
    """Return the numbers of a tensor as bytes."""
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_constant, value))
    return isinstance(value, _CONSTANTS)
