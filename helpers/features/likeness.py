"""What a model is besides the values of its parameters and buffers, for a plan of a job."""

import hashlib
from enum import Enum
from itertools import chain
from numbers import Number

import torch
from torch import Tensor, nn

_CONSTANTS = (str, bytes, Number, Enum, torch.dtype, torch.device, type(None))
_OF_EVERY_MODULE = {*vars(nn.Module()), "_torchdynamo_wrapper_id"}


def facts_of(model: nn.Module) -> dict[str, str]:
    """Describe all but parameter and buffer values, by name, identically in every process."""
    facts = {}
    first = {id(t): name for name, t in chain(model.named_parameters(), model.named_buffers())}
    for path, module in model.named_modules():
        prefix = path and f"{path}."
        mode = "" if module.training else " in eval mode"
        facts[path or "the model"] = f"{type(module).__name__}({module.extra_repr()}){mode}"
        tensors = chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for name, tensor in tensors:
            fixed = "" if tensor.requires_grad or tensor.grad_fn else ", fixed"
            tied = "" if first[id(tensor)] == prefix + name else f", tied to {first[id(tensor)]}"
            hooks = f", {len(tensor._backward_hooks)} hooks" if tensor._backward_hooks else ""
            facts[prefix + name] = f"{tuple(tensor.shape)} {tensor.dtype}{fixed}{tied}{hooks}"
        for name, value in vars(module).items():
            if name in _OF_EVERY_MODULE:
                continue
            if _is_constant(value):
                facts[prefix + name] = repr(value)
            elif isinstance(value, Tensor) and value.is_leaf:  # others are computed
                numbers = hashlib.blake2b(content(value), digest_size=8).hexdigest()
                facts[prefix + name] = f"a tensor {tuple(value.shape)}, with the hash {numbers}"
            elif hasattr(value, "__qualname__"):  # a function or a class
                facts[prefix + name] = value.__qualname__
    return facts


def content(tensor: Tensor) -> bytes:
    """Return the numbers of a tensor as bytes."""
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def _is_constant(value: object) -> bool:
    is_list = isinstance(value, tuple | list)
    return all(map(_is_constant, value)) if is_list else isinstance(value, _CONSTANTS)
