"""What a caller could see change in a model: tensors, attributes, containers, hooks and modes."""

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Snapshot:
    """All that a call promises to leave as it was, as it is now.

    Values are told apart by identity as well, so that what was replaced by something equal is a
    change too. What functions close over, classes and files are not a model's own.
    """

    def __init__(self, *roots: Any) -> None:
        self._roots = roots
        self._alive: list[Any] = []  # or another object could get an `id` that is free again
        self._inside: set[int] = set()
        self.values: dict[str, object] = {}  # by place
        for number, root in enumerate(roots):
            self._record(f"root {number}", root)
            if isinstance(root, nn.Module):  # a scripted one has its attributes elsewhere
                for name, module in root.named_modules():
                    self.values[f"mode of {name!r}"] = module.training
                for name, parameter in root.named_parameters():
                    self._record_tensor(name, parameter)
                for name, buffer in root.named_buffers():
                    self._record_tensor(name, buffer)

    def changes(self) -> list[str]:
        """Return the places where something is new, gone or another."""
        before = self.values
        now = Snapshot(*self._roots).values
        changed = []
        for place in before | now:
            in_both = place in before and place in now
            if not in_both or before[place] != now[place]:
                changed.append(place)
        return changed

    def _record(self, place: str, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self.values[place] = value
            return
        self.values[place] = id(value), type(value)
        if id(value) in self._inside:
            return
        self._inside.add(id(value))
        self._alive.append(value)
        if isinstance(value, Tensor):
            self._record_tensor(place, value)
        elif isinstance(value, np.ndarray):
            self.values[f"{place} (array)"] = value.tobytes()
        elif isinstance(value, dict):
            keys = []
            for key in list(value):
                keys.append(key if isinstance(key, _PLAIN) else id(key))
                self._record(f"{place}[{key!r}]", dict.__getitem__(value, key))
            self.values[f"{place} (keys)"] = keys
        elif isinstance(value, list | tuple | set | deque):
            # By an iterator, since the length of a class of their own may raise.
            parts = sorted(value, key=id) if type(value) is set else list(iter(value))
            self.values[f"{place} (length)"] = len(parts)
            for index, part in enumerate(parts):
                self._record(f"{place}[{index}]", part)
        elif isinstance(value, type | torch.jit.ScriptModule):
            return
        elif isinstance(value, nn.Module) or type(value).__module__.startswith("tests"):
            self._record(f"{place}.", getattr(value, "__dict__", None))
            for name in getattr(value, "__slots__", ()):
                self._record(f"{place}.{name}", getattr(value, name))

    def _record_tensor(self, place: str, tensor: Tensor) -> None:
        if nn.parameter.is_lazy(tensor):
            return
        grad = tensor.grad if tensor.is_leaf else None
        self._alive += [tensor, grad]
        memory, of_grad = (), ()
        if tensor.layout is torch.strided:
            memory = tensor.data_ptr(), tensor.stride(), tensor.storage_offset()
        if grad is not None:
            of_grad = id(grad), exactly(grad)
        self.values[f"{place} (tensor)"] = (
            id(tensor),
            type(tensor),
            tensor.dtype,
            tensor.shape,
            exactly(tensor),
            tensor.requires_grad,
            tensor.is_leaf,
            len(tensor._backward_hooks or ()),
            memory,
            of_grad,
        )


def exactly(tensor: Tensor) -> bytes:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
