"""A pretended accelerator: it computes on the CPU, and is strict about devices.

Importing this module makes the device `pretend` in this process, and `"auto"` then means it. A
tensor there is a wrapper around one of the CPU. An operation that is given tensors of both devices
is refused as CUDA refuses it, and so is `.numpy()` without `.cpu()`. Random numbers come from a
stream of its own, and a generator has to be of this device.

What it cannot show: kernels of CUDA (recurrent layers among them), TF32, memory, streams and speed.

It stands on an interface of torch that is experimental, and a wrapper that lies about its shape
ends the process. So tests import it in a process of their own.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

from helpers import devices

NAME = "pretend"
CPU = torch.device("cpu")

# Operations that take tensors of two devices, as CUDA's do; others take numbers of the CPU, tensors
# without a dimension, but for those that join tensors.
_COPIES = {"copy_", "_to_copy", "_copy_from"}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_INDEXED |= {"_unsafe_index_put"}
_JOIN = {"cat", "stack"}
_ANSWERS_IN_PYTHON = {"_local_scalar_dense", "equal", "is_same_size", "allclose"}


class Generator(torch.Generator):
    """A random stream of the device, or of the CPU."""

    ours: ClassVar[dict[int, "Generator"]] = {}
    """Those of the device by address: an operation gets another object for the same stream."""

    def __new__(cls, device: str | torch.device = "cpu") -> "Generator":
        made = super().__new__(cls)
        if torch.device(device).type == NAME:
            cls.ours[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:
        return DEVICE if self._cdata in self.ours else CPU


STREAM = torch.Generator()


class _Backend(backend_registration._DummyBackendModule):
    """What `torch.get_device_module("pretend")` returns."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return STREAM.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        STREAM.set_state(state)

    def manual_seed_all(self, seed: int) -> None:
        STREAM.manual_seed(seed)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Checkpoints ask for it, and end the process where it is not there."""
        return [torch.float16, torch.bfloat16]


class Pretend(torch.Tensor):
    """A tensor of the device around one of the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> "Pretend":
        if raw.layout != torch.strided:  # a wrapper around one ends the process
            raise NotImplementedError(f"{NAME} has no tensors of layout {raw.layout}")
        options = {"strides": raw.stride(), "storage_offset": raw.storage_offset()}
        options |= {"dtype": raw.dtype, "layout": raw.layout, "device": DEVICE}
        return torch.Tensor._make_wrapper_subclass(cls, raw.shape, **options)

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{NAME}({self.raw!r})"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})

    # What torch does for real devices in C++, and not for wrappers.

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.raw.detach().numpy()
        raise TypeError(f"can't convert a tensor of {DEVICE} to numpy: use Tensor.cpu() first")

    def __array__(self, *args: Any, **options: Any) -> Any:
        return self.numpy()

    def __format__(self, spec: str) -> str:
        return self.raw.detach().__format__(spec)

    def tolist(self) -> Any:
        return self.raw.tolist()

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            new = Pretend(self.raw.detach().clone())
            if isinstance(self, torch.nn.Parameter) or getattr(self, "_is_param", False):
                new = torch.nn.Parameter(new, requires_grad=self.requires_grad)
            memo[id(self)] = new.requires_grad_(self.requires_grad)
        return memo[id(self)]


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU, if a GPU would take its tensors."""
    name = op._schema.name.partition("::")[2]
    _require_one_device(name, args, kwargs)
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
        return wrappers[id(value)] if id(value) in wrappers else Pretend(value)

    if name == "embedding" and True in (*args[4:], kwargs.get("sparse")):
        # Its backward makes a sparse tensor, in C++, where an error ends the process.
        raise NotImplementedError(f"{NAME} has no sparse gradients of embeddings")
    raw_args, raw_kwargs = tree_map(unwrap, (args, kwargs))
    draws = torch.Tag.nondeterministic_seeded in op.tags and kwargs.get("generator") is None
    with torch.random.fork_rng(devices=[], enabled=draws):  # leaves the stream of the CPU alone
        if draws:
            torch.set_rng_state(STREAM.get_state())
        result = op(*raw_args, **raw_kwargs)
        if draws:
            STREAM.set_state(torch.get_rng_state())
    if name == "copy_":
        return args[0]
    if torch.Tag.inplace_view in op.tags:  # unsqueeze_, t_: the wrapper's own shape changes too
        with no_dispatch():
            op(*args, **kwargs)
        return args[0]
    leaves = torch.device(kwargs.get("device") or DEVICE).type != NAME
    return result if leaves or name in _ANSWERS_IN_PYTHON else tree_map(wrap, result)


def _require_one_device(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Refuse what CUDA would: tensors of two devices, or a generator of another one."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    strange = [each for each in tensors if not isinstance(each, Pretend)]
    if len(strange) < len(tensors) and name not in _COPIES:
        for tensor in strange:
            number = tensor.dim() == 0 and name not in _JOIN
            index = name in _INDEXED and isinstance(args[0], Pretend) and tensor is not args[0]
            if not number and not (index and not tensor.is_floating_point()):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {DEVICE} and {tensor.device}! (aten::{name})"
                )
    generator = kwargs.get("generator")
    if generator is not None and generator._cdata not in Generator.ours:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")


def _apply(self: Any, fn: Any, *args: Any, of_torch: Any = torch.nn.Module._apply) -> Any:
    """Let parameters that move there stay the same objects: tied ones, and those in lists."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    moves = isinstance(fn(torch.empty(0)), Pretend)
    torch.__future__.set_swap_module_params_on_conversion(moves)
    try:
        return of_torch(self, fn, *args)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _made(function: Callable[..., torch.Tensor]) -> Callable[..., Pretend]:
    def make(*args: Any, dtype: Any = None, **options: Any) -> Pretend:
        return Pretend(function(*args, dtype=dtype, device=CPU))

    return make


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    raw = [each.raw if isinstance(each, Pretend) else each for each in (source, target)]
    raw[1].copy_(raw[0])
    return target


_BELOW = {
    "empty.memory_format": _made(torch.empty),
    "empty_strided": _made(torch.empty_strided),
    # They fill a tensor that they make larger first, which a wrapper would not notice.
    "eye": _made(torch.eye),
    "eye.m": _made(torch.eye),
    "_efficientzerotensor": _made(torch.zeros),
    "_copy_from": _copy_from,  # `torch.tensor(..., device=...)` comes here
    "_local_scalar_dense": lambda tensor: tensor.raw.item(),  # of numbers in `torch.tensor([...])`
}
"""Operations that torch calls below its Python dispatch."""

backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(NAME, 0)
LIBRARY = torch.library.Library("aten", "IMPL")
for _name, _function in _BELOW.items():
    LIBRARY.impl(_name, _function, "PrivateUse1")
torch.autograd.set_multithreading_enabled(False)  # the engine has no thread for this device
torch.__future__.set_overwrite_module_params_on_conversion(True)  # a wrapper's data stays
torch.nn.Module._apply = _apply
torch.accelerator.synchronize = lambda device=None: None
torch.Generator = Generator
devices.available = lambda: [str(DEVICE), "cpu"]
