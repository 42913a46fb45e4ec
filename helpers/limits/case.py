"""A model and a few samples: run without transforms, again and again, and put back each time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from helpers.limits.findings import described
from helpers.transforms import batches
from helpers.transforms import randomness as streams
from helpers.transforms.batches import Batch
from helpers.transforms.fallback import find_place
from helpers.transforms.restore import Snapshot, preserved


@dataclass
class Run:
    """What a model did with some samples, without transforms."""

    predictions: Any
    loss: Any
    outputs: dict[str, list[Any]]
    """By module, what it returned in each of its calls."""
    drew: bool


@dataclass
class Case:
    """A model, its loss and a few samples."""

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    batch: Batch
    in_eval: dict[str, nn.Module] = field(default_factory=dict)
    """Modules that raise under transforms in training mode, and run in evaluation mode."""

    def random_state(self) -> streams.State:
        """Read the random streams that the model may draw from."""
        return streams.random_state(self.batch.leaves[0].device)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Put the model and the random streams back at the end of a block."""
        values = Snapshot(self.model.parameters())
        trainable = [name for name, p in self.model.named_parameters() if p.requires_grad]
        device = self.batch.leaves[0].device
        try:
            with streams.streams_kept(device), preserved(self.model, trainable):
                for module in self.in_eval.values():
                    module.eval()
                yield
        finally:
            values.restore()

    def run(self, rows: slice) -> Run:
        """Run the model and the loss; raise ValueError where that cannot be done."""
        outputs: dict[str, list[Any]] = {}
        names = {id(module): name or "the model" for name, module in self.model.named_modules()}

        def keep(module: nn.Module, _: Any, output: Any) -> None:
            if id(module) in names:  # and is no copy, made in the forward
                outputs.setdefault(names[id(module)], []).append(output)

        with self.put_back():
            for module in self.model.modules():
                if not isinstance(module, torch.jit.ScriptModule):  # which takes no hook
                    module.register_forward_hook(keep)
            begin, data = self.random_state(), self.batch[rows]
            try:
                inputs, targets = data.whole()
                predictions = batches.call(self.model, inputs)
                loss = self.loss_fn(predictions, targets)
            except Exception as error:
                raise ValueError(
                    f"the model must run before it can be diagnosed, and on {samples(len(data))}, "
                    f"without transforms, {find_place(error, self.model)} raised {described(error)}"
                ) from error
            if isinstance(loss, Tensor) and not has_gradient(loss):
                raise ValueError(f"loss_fn must return a floating point number, got {loss.dtype}")
            drew = not streams.alike(begin, self.random_state())
        return Run(predictions, loss, outputs, drew)


def has_gradient(tensor: Tensor) -> bool:
    """Return whether a tensor is of numbers that can be differentiated."""
    return tensor.is_floating_point() or tensor.is_complex()


def samples(count: int) -> str:
    """Write how many samples there are."""
    return f"{count} sample" + "s" * (count > 1)
