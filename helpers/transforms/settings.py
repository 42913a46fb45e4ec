"""What a module is besides its registered tensors: its class, and what its attributes hold.

Two modules of one class, with tensors of the same shapes, may compute different things: attention
with one head or with two, an activation that was passed as a function, a scale that is a number or
a tensor that nobody registered. `described` puts that into words that are the same for modules
that compute the same, in every process.
"""

import functools
import hashlib
import types
from collections.abc import Collection
from dataclasses import is_dataclass
from enum import Enum
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from helpers.transforms import restore

_OF_EVERY_MODULE = {*vars(nn.Module()), "_compiled_call_impl"}
_WRITTEN = (str, bytes, Number, Enum, torch.dtype, torch.device, slice, type(None))


def settings(module: nn.Module, registered: Collection[int]) -> dict[str, str]:
    """Describe the attributes of a module that are neither registered nor every module's.

    Args:
        module: By itself, without the modules in it.
        registered: The `id` of the parameters and buffers of the model that it is in.

    Returns:
        By name, a text; one for the class, which says what its functions do where it is local.
    """
    if type(module).__module__.startswith("torch._dynamo"):  # around a module, with ids of its own
        return {}
    kind = type(module)
    written = {"its class": f"{kind.__module__}.{kind.__qualname__}"}
    if "<locals>" in kind.__qualname__:  # there may be several, with other numbers around them
        functions = {name: value for name, value in vars(kind).items() if callable(value)}
        written["its class"] += described(functions, registered)
    return written | {
        name: described(value, registered)
        for name, value in sorted(vars(module).items())
        # What torch.nn.utils computes from parameters with such names, before each forward.
        if name not in _OF_EVERY_MODULE
        and not {f"{name}_orig", f"{name}_g"} & module._parameters.keys()
    }


def closing_over(model: nn.Module) -> str | None:
    """Find a function, an attribute or a hook of a model, that closes over a part of the model.

    No copy of the model can lead such a function to the tensors of the copy.

    Args:
        model: Any module.

    Returns:
        The name of the attribute that leads to it, `None` where there is none.
    """
    own = {id(part) for part in (*model.parameters(), *model.buffers(), *model.modules())}
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch._dynamo"):  # it makes copies by itself
            continue
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers", "_modules", "_compiled_call_impl"):
                continue
            waiting, seen = _functions([value]), set()
            while waiting:
                function = waiting.pop()
                if id(function) in seen:
                    continue
                seen.add(id(function))
                held = [_held(cell) for cell in function.__closure__ or ()]
                held += function.__defaults__ or ()
                if any(id(found) in own for found in restore.walk(held)):
                    return f"{name}.{key}".lstrip(".")
                waiting += _functions(held)
    return None


def _functions(values: list[Any]) -> list[types.FunctionType]:
    return [found for found in restore.walk(values) if isinstance(found, types.FunctionType)]


def described(value: Any, registered: Collection[int] = ()) -> str:
    """Describe a value: the same text for what is equal, in every process.

    Args:
        value: Anything. Of an object that is neither a number, a text, a tensor, an array, a
            container, a function, a dataclass nor a module, nothing but the class counts.
        registered: The `id` of tensors whose numbers do not count.
    """
    return _described(value, registered, ())


def _described(value: Any, registered: Collection[int], around: tuple[int, ...]) -> str:
    if id(value) in around:
        return "itself"
    around = (*around, id(value))

    def each(values: Any) -> list[str]:
        return [_described(part, registered, around) for part in values]

    kind = type(value).__qualname__
    if isinstance(value, Tensor):
        return "a registered tensor" if id(value) in registered else _tensor(value)
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {value.dtype} {_hash(np.ascontiguousarray(value).tobytes())}"
    if isinstance(value, _WRITTEN):
        return repr(value)
    if isinstance(value, dict):
        pairs = zip(each(value), each(value.values()), strict=True)
        return f"{kind}({', '.join(f'{key}: {part}' for key, part in pairs)})"
    if isinstance(value, list | tuple):
        return f"{kind}({', '.join(each(value))})"
    if isinstance(value, set | frozenset):
        return f"{kind}({', '.join(sorted(each(value)))})"
    if isinstance(value, functools.partial):
        return f"partial({', '.join(each((value.func, value.args, value.keywords)))})"
    if isinstance(value, types.FunctionType):
        cells = [_held(cell) for cell in value.__closure__ or ()]
        parts = each((value.__code__, value.__defaults__, value.__kwdefaults__, cells))
        return f"{value.__qualname__}({', '.join(parts)})"
    if isinstance(value, types.CodeType):
        return f"code {_hash(value.co_code)} {value.co_names} {each(value.co_consts)}"
    if isinstance(value, nn.Module):
        return f"{kind}({', '.join(each((*value.parameters(), *value.buffers())))})"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return value.__qualname__
    if is_dataclass(value) or isinstance(value, types.SimpleNamespace):
        return f"{kind}({', '.join(each([vars(value)]))})"
    return kind


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _tensor(tensor: Tensor) -> str:
    text = f"tensor {tuple(tensor.shape)} {tensor.dtype}"
    if tensor.is_meta or tensor.layout is not torch.strided:
        return f"{text} {tensor.device} {tensor.layout}"
    return f"{text} {_hash(content(tensor))}"


def content(tensor: Tensor) -> bytes:
    """Return the numbers of a tensor as bytes."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return tensor.flatten().view(torch.uint8).numpy().tobytes()


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
