"""What a model is besides the values of its parameters and buffers, for a plan of a job."""

import hashlib
from enum import Enum
from itertools import chain
from numbers import Number

import torch
from torch import Tensor, nn

_CONSTANTS = (str, bytes, Number, Enum, torch.dtype, torch.device, type(None))
# Attributes of all modules, which say nothing about this one.
_OF_EVERY_MODULE = {*vars(nn.Module()), "_torchdynamo_wrapper_id"}


def facts_of(model: nn.Module) -> dict[str, str]:
    """Describe all but parameter and buffer values, by name, identically in every process."""
    facts = {}
    first_names = {}  # of each tensor, which may have several
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        first_names[id(tensor)] = name
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        mode = "" if module.training else " in eval mode"
        facts[path or "the model"] = f"{type(module).__name__}({module.extra_repr()}){mode}"
        tensors = chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for name, tensor in tensors:
            fact = f"{tuple(tensor.shape)} {tensor.dtype}"
            if not tensor.requires_grad and not tensor.grad_fn:
                fact += ", fixed"
            first_name = first_names[id(tensor)]
            if first_name != prefix + name:
                fact += f", tied to {first_name}"
            hooks = tensor._backward_hooks  # noqa: SLF001 - no public name lists them
            if hooks:
                fact += f", {len(hooks)} hooks"
            facts[prefix + name] = fact
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
    if isinstance(value, tuple | list):
        return all(map(_is_constant, value))
    return isinstance(value, _CONSTANTS)
