"""All that a caller could see change in a model: tensors, containers, hooks, flags, classes."""

import types
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def exactly(tensor: Tensor) -> bytes:
    """Read a tensor's numbers, bit by bit."""
    tensor = tensor.detach()
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return tensor.contiguous().numpy().tobytes()


def everything(*roots: Any) -> dict[str, object]:
    """Record what roots lead to, by attributes, containers, closures and classes of these tests.

    Objects are told apart by their `id`, so that what was replaced by something equal is seen too.
    """
    seen: dict[str, object] = {}
    inside: set[int] = set()

    def record(place: str, value: Any) -> None:
        if isinstance(value, _PLAIN):
            seen[place] = value
            return
        seen[place] = id(value), type(value)
        if id(value) in inside:
            return
        inside.add(id(value))
        if isinstance(value, Tensor):
            seen[f"{place} (tensor)"] = _of_tensor(value)
            record(f"{place}.grad", value.grad) if value.is_leaf else None
        elif isinstance(value, np.ndarray):
            seen[f"{place} (array)"] = value.tobytes()
        elif isinstance(value, torch.Generator):
            seen[f"{place} (generator)"] = exactly(value.get_state())
        elif isinstance(value, dict):
            seen[f"{place} (keys)"] = [key if isinstance(key, _PLAIN) else id(key) for key in value]
            for key, part in [(key, dict.__getitem__(value, key)) for key in value]:
                record(f"{place}[{key!r}]", part)
        elif isinstance(value, list | tuple | set | deque):
            seen[f"{place} (length)"] = len(value)
            for index, part in enumerate(sorted(value, key=id) if type(value) is set else value):
                record(f"{place}[{index}]", part)
        elif isinstance(value, types.MethodType):
            record(f"{place}.__self__", value.__self__)
        elif isinstance(value, types.FunctionType):
            for cell, name in zip(value.__closure__ or (), value.__code__.co_freevars, strict=True):
                record(f"{place}<{name}>", cell.cell_contents)
        elif not isinstance(value, type | torch.jit.ScriptModule) and hasattr(value, "__dict__"):
            if isinstance(value, nn.Module) or type(value).__module__.startswith("tests"):
                record(f"{place}.", vars(value))
            for kind in type(value).__mro__:
                if kind.__module__.startswith("tests"):
                    for key, part in vars(kind).items():
                        if not key.startswith("__"):
                            record(f"{place}({kind.__name__}).{key}", part)

    for number, root in enumerate(roots):
        record(f"root {number}", root)
        if isinstance(root, nn.Module):  # also where attributes lie elsewhere, as in scripted ones
            for name, module in root.named_modules():
                seen[f"mode of {name!r}"] = module.training
            for name, tensor in (*root.named_parameters(), *root.named_buffers()):
                seen[f"{name} (tensor)"] = _of_tensor(tensor)
    return seen


def _of_tensor(tensor: Tensor) -> tuple[object, ...]:
    strided = tensor.layout is torch.strided
    memory = (tensor.data_ptr(), tensor.stride(), tensor.storage_offset()) if strided else ()
    grad = None if not tensor.is_leaf or tensor.grad is None else exactly(tensor.grad)
    hooks = len(tensor._backward_hooks or ())
    flags = tensor.requires_grad, tensor.is_leaf, tensor._version, tensor.dtype, tensor.shape
    return id(tensor), type(tensor), exactly(tensor), memory, grad, hooks, flags


def difference(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Name the places where two records differ."""
    missing = object()
    return [
        place for place in before | after if before.get(place, missing) != after.get(place, missing)
    ]
