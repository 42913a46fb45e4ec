"""Following a model while it runs: which module, which function, what it drew, what it warned."""

import random
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import debug_unwrap
from torch.overrides import TorchFunctionMode

from helpers.transforms.batches import Batch, Tree, take
from helpers.transforms.randomness import random_state

_IN_AUTOGRAD = (Tensor.requires_grad, Tensor.grad_fn, Tensor.is_leaf)
CUSTOM_OPERATOR = "a custom operator"
"""What a function of `torch.library.custom_op` is called here, whatever its own name."""


class Case(NamedTuple):
    """A model, a loss, and a batch to differentiate it at."""

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    data: Tree | Batch
    """A `Batch` is one of data and targets."""
    targets: Tree = None

    @property
    def batch(self) -> Batch:
        """Data and targets, taken apart."""
        return take(self.model, data=self.data, targets=self.targets)


class Watch(TorchFunctionMode):
    """Watch one run of a model, which keeps the hooks for it until it is put back.

    Random draws are looked for on the device `draws_on`, and not under transforms, where no state
    can be read.
    """

    def __init__(self, model: nn.Module, draws_on: torch.device | None = None) -> None:
        super().__init__()
        self.names = {module: name or "the model" for name, module in model.named_modules()}
        self.running: list[nn.Module] = []  # in their forward, the innermost last
        self.phase = "the model"  # outside of modules: also "loss_fn", "the backward pass"
        self.raised_in = ""  # the function of torch that raised
        self.outputs: list[tuple[str, Tensor]] = []  # of modules, where they are one tensor
        self.drew: dict[str, list[str]] = {"torch": [], "numpy": []}  # innermost modules that draw
        self.loss_calls: list[tuple[str, dict[str, Any]]] = []  # of torch, with named arguments
        self.gradients: dict[str, Tensor] = {}  # what the bare composition returned
        self.asked: list[str] = []  # where a forward asked if a tensor requires a gradient
        self.opaque = False  # whether an operator such as torch.cond hid what its branches meet
        self.fallbacks: list[tuple[str, str]] = []  # operations of `vmap`, each with the place
        self._device = draws_on
        self._states: list[tuple[Any, Any]] = []
        self._explained = {"torch": 0, "numpy": 0}
        self._thread = threading.get_ident()
        for module in self.names:
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook
                module.register_forward_pre_hook(self._enter)
                module.register_forward_hook(self._leave)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note losses on their way in, and errors on their way out."""
        name = getattr(func, "__name__", "")
        if type(func).__name__.startswith("OpOverload") and not str(func).startswith("aten."):
            name = CUSTOM_OPERATOR
        self.opaque = self.opaque or type(func).__module__.startswith("torch._higher_order_ops")
        if getattr(func, "__self__", None) in _IN_AUTOGRAD:
            asker = sys._getframe(1).f_globals.get("__name__", "")
            if (
                self.running
                and not asker.startswith(("torch.", "helpers."))
                and args[0].grad_fn is not None
            ):
                self.asked.append(self.place)
        if name in ("cross_entropy", "nll_loss"):
            self.loss_calls.append((name, kwargs or {}))
        try:
            return func(*args, **(kwargs or {}))
        except Exception:
            self.raised_in = name
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> "Watch":
        """Stay the one, where a forward copies a module with its hooks."""
        return self

    @property
    def place(self) -> str:
        """The innermost module that is running, or else the phase."""
        return self.names[self.running[-1]] if self.running else self.phase

    def follow(self, loss_fn: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
        """Wrap a loss, so that the phase is known."""

        def followed(predictions: Any, targets: Any) -> Tensor:
            self.phase = "loss_fn"
            loss = loss_fn(predictions, targets)
            if isinstance(loss, Tensor) and loss.dim() == 0:  # else it is the loss that is refused
                self.phase = "the backward pass"
            return loss

        return followed

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Note the fallbacks that `vmap` warns of, and show no warning."""

        def heard(message: Any, *rest: Any, **options: Any) -> None:
            operation = re.search(r"batching rule for (?:aten::)?([\w:]+)", str(message))
            if operation:
                self.fallbacks.append((operation[1], self.place))

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = heard
            yield

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if threading.get_ident() != self._thread:  # whose calls come in any order
            return
        self.running.append(module)
        self._states.append((self._random_states(), dict(self._explained)))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        while self.running and self.running.pop() is not module:
            self._states.pop()
        before, explained = self._states.pop()
        after = self._random_states()
        for kind, drew in self.drew.items():
            if before[kind] != after[kind] and explained[kind] == self._explained[kind]:
                drew.append(self.names[module])
                self._explained[kind] += 1
        if isinstance(output, Tensor) and debug_unwrap(output, recurse=False) is output:
            self.outputs.append((self.names[module], output))

    def _random_states(self) -> dict[str, Any]:
        if self._device is None:
            return dict.fromkeys(self.drew)
        try:
            states = (each for each in random_state(self._device) if isinstance(each, Tensor))
            torch_state = [each.numpy(force=True).tobytes() for each in states]
        except RuntimeError:  # under a transform, the model's own too, no state can be read
            return dict.fromkeys(self.drew)
        _, keys, position, *_ = np.random.get_state()  # noqa: NPY002
        return {"torch": torch_state, "numpy": (keys.tobytes(), position, random.getstate())}
