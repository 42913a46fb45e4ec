"""What features are computed of: a gradient computer, and a data set."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from helpers import data, models
from helpers.gradient_computers import AbstractGradientComputer, FunctionalGradientComputer
from helpers.model_outputs import ImageClassificationModelOutput

MODELS: dict[str, type[nn.Module]] = {
    "mlp": models.MLP,
    "cnn": models.SimpleCNN,
    "transformer": models.SmallTransformer,
}


@dataclass
class Job:
    """A gradient computer, and the samples it is put to.

    Attributes:
        computer: What computes the gradients. Every process makes its own, with the same weights.
        dataset: What `torch.utils.data.DataLoader` takes: it has a length, and `dataset[i]` is
            sample i, a tuple of tensors or numbers, the same in every process.
    """

    computer: AbstractGradientComputer
    dataset: Sequence[tuple[Any, ...]]

    def __post_init__(self) -> None:
        """Refuse what is no such thing.

        Raises:
            TypeError: The computer computes no gradients, or the data set has no length.
            ValueError: It has no sample.
        """
        if not isinstance(self.computer, AbstractGradientComputer):
            raise TypeError(
                "a job's computer must be a gradient computer of helpers.gradient_computers, "
                f"got {type(self.computer).__name__}"
            )
        if not hasattr(self.dataset, "__len__") or not hasattr(self.dataset, "__getitem__"):
            raise TypeError(
                "a job's dataset must have a length and dataset[i] for sample i, as a list has, "
                f"got {type(self.dataset).__name__}"
            )
        if not len(self.dataset):
            raise ValueError("a job's dataset must hold a sample at least, got none")


def collate(samples: Sequence[tuple[Any, ...]]) -> tuple[Tensor, ...]:
    """Make a batch of samples.

    Args:
        samples: Tuples of tensors, arrays or numbers, alike in shape.

    Returns:
        Tensors `(B, ...)`, as `torch.utils.data.default_collate` makes them.

    Raises:
        TypeError: A sample is no such tuple.
        ValueError: The shapes differ.
    """
    for sample in samples:
        kinds = [type(part) for part in sample] if isinstance(sample, tuple | list) else ()
        if not kinds or any(issubclass(kind, str | bytes | tuple | list | dict) for kind in kinds):
            got = type(sample).__name__
            got += f" of {', '.join(kind.__name__ for kind in kinds)}" if kinds else ""
            raise TypeError(
                "a sample of a job's dataset must be a tuple of tensors or numbers, such as "
                f"(image, label), got a {got}"
            )
    shapes = [tuple(tuple(np.shape(part)) for part in sample) for sample in samples]
    for shape in shapes:
        if shape != shapes[0]:
            raise ValueError(
                f"the samples of a job's dataset must have one shape, got {shapes[0]} and {shape}"
            )
    return tuple(default_collate([tuple(sample) for sample in samples]))


class Digits:
    """The digits of `helpers.data`, again from the first when there are no more of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.images, self.labels = data.load_digits()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(f"there are {self.count} samples, and {index} was asked for")
        return self.images[index % len(self.images)], self.labels[index % len(self.images)]


def on_digits(model: str, samples: int, seed: int, device: torch.device) -> Job:
    """Make the job of one of the collection's networks, as it is initialised from a seed.

    Args:
        model: One of `MODELS`.
        samples: N, how many samples.
        seed: Of the weights.
        device: Where the model computes.

    Raises:
        ValueError: There is no such model.
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    torch.manual_seed(seed)
    network = MODELS[model]().to(device)
    entries = sum(parameter.numel() for parameter in network.parameters())
    task = ImageClassificationModelOutput()
    computer = FunctionalGradientComputer(network, task, entries, torch.float32, device)
    return Job(computer, Digits(samples))


def load(name: str) -> Job:
    """Make the job that a function returns.

    Args:
        name: `package.module:function`; the module is found in the working directory or where
            Python finds modules.

    Raises:
        ValueError: There is no such function, or it returns something else.
    """
    module, _, function = name.partition(":")
    if not module or not function or module.startswith("."):
        raise ValueError(f"job must be package.module:function, got {name!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        raise ValueError(f"job {name!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"job {name!r}: {module} has no function {function}")
    job = found()
    if not isinstance(job, Job):
        raise ValueError(f"job {name!r} must return a helpers.features.Job, got {type(job)}")
    return job
