"""Two pretended accelerators: they compute on the CPU, and are strict about devices.

Importing this module makes the devices `pretend:0` and `pretend:1` in this process; `"pretend"` is
the current one, and `"auto"` means the first. A tensor there is a wrapper around one of the CPU.
They are as strict as CUDA:

- an operation on tensors of two devices is refused, and so is `.numpy()` without `.cpu()`
- each has a random stream of its own; a generator belongs to a device, with or without an index
- float32 convolutions round to ten bits while `torch.backends.cudnn.allow_tf32` is on, which is
  torch's default, and matrix products while `torch.backends.cuda.matmul.allow_tf32` is on
- `WAITS` counts how often the CPU waited for a result
- with `PRETEND_FLOAT64=0` in the environment they have no float64, like MPS

What they cannot show: kernels of CUDA (recurrent layers, attention and weight norm have their own),
kernels that add in another order each time, streams that run beside each other, memory and its
errors, speed, functions of `torch.cuda` and `torch.mps`, autocast, and derivatives on the second
device, for which torch's engine has no queue.

They stand on an interface of torch that is experimental, and a wrapper that lies about its shape
ends the process. So tests import this module in a process of their own.
"""

import os
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

NAME = "pretend"
CPU = torch.device("cpu")
COUNT = 2
HAS_FLOAT64 = os.environ.get("PRETEND_FLOAT64") != "0"

# Operations that take tensors of two devices, as CUDA's do; others take numbers of the CPU, tensors
# without a dimension, but for those that join tensors.
_COPIES = {"copy_", "_to_copy", "_copy_from"}
_PACKS = {"_pack_padded_sequence", "_pad_packed_sequence"}  # lengths are on the CPU
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_INDEXED |= {"_unsafe_index_put"}
_JOIN = {"cat", "stack"}
_ANSWERS_IN_PYTHON = {"_local_scalar_dense", "equal", "is_same_size", "allclose"}

# Operations whose result the CPU has to wait for.
_WAITED_FOR = {"_local_scalar_dense", "equal", "is_nonzero", "allclose", "nonzero", "masked_select"}
WAITS = {"count": 0}

_CONVOLUTIONS = {"convolution", "convolution_backward"}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv"}


class Generator(torch.Generator):
    """A random stream of one of the devices, or of the CPU."""

    ours: ClassVar[dict[int, torch.device]] = {}
    """The device of each, as it was asked for. Its key is the generator's address: an operation
    gets another object for the same stream."""

    def __new__(cls, device: str | torch.device = "cpu") -> "Generator":
        made = super().__new__(cls)
        asked = torch.device(device)
        if asked.type == NAME:
            cls.ours[made._cdata] = asked
        return made

    @property
    def device(self) -> torch.device:
        return self.ours.get(self._cdata, CPU)


STREAMS = [torch.Generator() for _ in range(COUNT)]


class _Backend(backend_registration._DummyBackendModule):
    """What `torch.get_device_module("pretend")` returns."""

    current = 0

    def current_device(self) -> int:
        return self.current

    def set_device(self, device: Any) -> None:
        self.current = index_of(device)

    def device_count(self) -> int:
        return COUNT

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return STREAMS[index_of(device)].get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        STREAMS[index_of(device)].set_state(state)

    def manual_seed_all(self, seed: int) -> None:
        for stream in STREAMS:
            stream.manual_seed(seed)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Checkpoints ask for it, and end the process where it is not there."""
        return [torch.float16, torch.bfloat16]


BACKEND = _Backend()


def index_of(device: Any) -> int:
    """Return a device's index; without one it is the current device."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return BACKEND.current if index is None else index


class Pretend(torch.Tensor):
    """A tensor of one of the devices around one of the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor, index: int) -> "Pretend":
        if raw.layout != torch.strided:  # a wrapper around one ends the process
            raise NotImplementedError(f"{NAME} has no tensors of layout {raw.layout}")
        if raw.dtype == torch.float64 and not HAS_FLOAT64:
            raise TypeError(
                f"Cannot convert a {NAME} Tensor to float64 dtype as the framework doesn't support "
                "float64. Please use float32 instead."
            )
        options = {"strides": raw.stride(), "storage_offset": raw.storage_offset()}
        options |= {"dtype": raw.dtype, "layout": raw.layout}
        options["device"] = torch.device(NAME, index)
        return torch.Tensor._make_wrapper_subclass(cls, raw.shape, **options)

    def __init__(self, raw: torch.Tensor, index: int) -> None:
        self.raw = raw

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{self.device}({self.raw!r})"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})

    # What torch does for real devices in C++, and not for wrappers.

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.raw.detach().numpy()
        raise TypeError(f"can't convert a {self.device} tensor to numpy: use Tensor.cpu() first")

    def __array__(self, *args: Any, **options: Any) -> Any:
        return self.numpy()

    def __format__(self, spec: str) -> str:
        return self.raw.detach().__format__(spec)

    def tolist(self) -> Any:
        WAITS["count"] += 1
        return self.raw.tolist()

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            new = Pretend(self.raw.detach().clone(), self.device.index)
            if isinstance(self, torch.nn.Parameter) or getattr(self, "_is_param", False):
                new = torch.nn.Parameter(new, requires_grad=self.requires_grad)
            memo[id(self)] = new.requires_grad_(self.requires_grad)
        return memo[id(self)]


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU, if a GPU would take its tensors."""
    name = op._schema.name.partition("::")[2]
    index = _require_one_device(name, args, kwargs)
    wrappers: dict[int, Pretend] = {}

    def unwrap(value: Any) -> Any:
        if isinstance(value, Pretend):
            wrappers[id(value.raw)] = value
            return value.raw
        ours = isinstance(value, torch.device) and value.type == NAME
        return CPU if ours else value

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, Pretend):
            return value
        return wrappers[id(value)] if id(value) in wrappers else Pretend(value, index)

    if name == "embedding" and True in (*args[4:], kwargs.get("sparse")):
        # Its backward makes a sparse tensor, in C++, where an error ends the process.
        raise NotImplementedError(f"{NAME} has no sparse gradients of embeddings")
    to_cpu = torch.device(kwargs.get("device") or NAME).type != NAME
    is_waited_for = name in _WAITED_FOR or (name in _COPIES and to_cpu)
    if is_waited_for or _copies_to_cpu(name, args):
        WAITS["count"] += 1
    raw_args, raw_kwargs = tree_map(unwrap, (args, kwargs))
    if _is_rounded(name):
        raw_args, raw_kwargs = tree_map(_ten_bits, (raw_args, raw_kwargs))
    draws = torch.Tag.nondeterministic_seeded in op.tags and kwargs.get("generator") is None
    with torch.random.fork_rng(devices=[], enabled=draws):  # leaves the stream of the CPU alone
        if draws:
            torch.set_rng_state(STREAMS[index].get_state())
        result = op(*raw_args, **raw_kwargs)
        if draws:
            STREAMS[index].set_state(torch.get_rng_state())
    if name == "copy_":
        return args[0]
    if name in _PACKS:
        packed, lengths = result
        return wrap(packed), lengths
    if torch.Tag.inplace_view in op.tags:  # unsqueeze_, t_: the wrapper's own shape changes too
        with no_dispatch():
            op(*args, **kwargs)
        return args[0]
    return result if to_cpu or name in _ANSWERS_IN_PYTHON else tree_map(wrap, result)


def _require_one_device(name: str, args: Any, kwargs: dict[str, Any]) -> int:
    """Refuse what CUDA would: tensors of two devices, or a generator of another one.

    Returns:
        The index of the device that the result is on.
    """
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    index = BACKEND.current
    for tensor in tensors:
        if isinstance(tensor, Pretend):
            index = tensor.device.index
            break
    asked = kwargs.get("device")
    if asked is not None and torch.device(asked).type == NAME:
        index = index_of(asked)
    if name not in _COPIES | _PACKS:
        for tensor in tensors:
            if isinstance(tensor, Pretend) and tensor.device.index == index:
                continue
            on_cpu = not isinstance(tensor, Pretend)
            is_number = on_cpu and tensor.dim() == 0 and name not in _JOIN
            is_index = on_cpu and name in _INDEXED and isinstance(args[0], Pretend)
            is_index = is_index and tensor is not args[0] and not tensor.is_floating_point()
            if not is_number and not is_index:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {NAME}:{index} and {tensor.device}! (aten::{name})"
                )
    generator = kwargs.get("generator")
    if generator is not None:
        its = Generator.ours.get(generator._cdata, CPU)
        if its.type != NAME or index_of(its) != index:
            raise RuntimeError(f"Expected a '{NAME}:{index}' generator but found '{its}'")
    return index


def _copies_to_cpu(name: str, args: Any) -> bool:
    """Tell whether an operation copies a tensor of a device into one of the CPU."""
    return name == "copy_" and not isinstance(args[0], Pretend) and isinstance(args[1], Pretend)


def _is_rounded(name: str) -> bool:
    """Tell whether torch's switches let an operation round its inputs to TF32."""
    if name in _CONVOLUTIONS:
        return torch.backends.cudnn.allow_tf32
    return name in _PRODUCTS and torch.backends.cuda.matmul.allow_tf32


def _ten_bits(value: Any) -> Any:
    """Round the 23 bits behind the leading one of a float32 to ten."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return value
    bits = value.detach().contiguous().view(torch.int32)
    return ((bits + (1 << 12)) & -(1 << 13)).view(torch.float32)


def _apply(self: Any, fn: Any, *args: Any, of_torch: Any = torch.nn.Module._apply) -> Any:
    """Let parameters that move there stay the same objects: tied ones, and those in lists."""
    future = torch.__future__
    swaps = future.get_swap_module_params_on_conversion()
    overwrites = future.get_overwrite_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(isinstance(fn(torch.empty(0)), Pretend))
    # A wrapper's data stays what it is: from there, a module gets other parameters.
    is_there = any(isinstance(parameter, Pretend) for parameter in self.parameters())
    future.set_overwrite_module_params_on_conversion(is_there)
    try:
        return of_torch(self, fn, *args)
    finally:
        future.set_swap_module_params_on_conversion(swaps)
        future.set_overwrite_module_params_on_conversion(overwrites)


def _made(function: Callable[..., torch.Tensor]) -> Callable[..., Pretend]:
    def make(*args: Any, dtype: Any = None, device: Any = None, **options: Any) -> Pretend:
        return Pretend(function(*args, dtype=dtype, device=CPU), index_of(device))

    return make


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    if _copies_to_cpu("copy_", (target, source)):
        WAITS["count"] += 1
    raw = [each.raw if isinstance(each, Pretend) else each for each in (source, target)]
    raw[1].copy_(raw[0])
    return target


def _number_of(tensor: Any) -> Any:
    WAITS["count"] += 1
    return tensor.raw.item()


_BELOW = {
    "empty.memory_format": _made(torch.empty),
    "empty_strided": _made(torch.empty_strided),
    # They fill a tensor that they make larger first, which a wrapper would not notice.
    "eye": _made(torch.eye),
    "eye.m": _made(torch.eye),
    "_efficientzerotensor": _made(torch.zeros),
    "_copy_from": _copy_from,  # `torch.tensor(..., device=...)` comes here
    "_local_scalar_dense": _number_of,  # of numbers in `torch.tensor([...])`
}
"""Operations that torch calls below its Python dispatch."""

backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=BACKEND)
LIBRARY = torch.library.Library("aten", "IMPL")
for _name, _function in _BELOW.items():
    LIBRARY.impl(_name, _function, "PrivateUse1")
torch.autograd.set_multithreading_enabled(False)  # the engine has no thread for these devices
torch.nn.Module._apply = _apply
torch.accelerator.synchronize = lambda device=None: None
torch.accelerator.device_count = BACKEND.device_count
torch.accelerator.current_device_index = BACKEND.current_device
torch.Generator = Generator
