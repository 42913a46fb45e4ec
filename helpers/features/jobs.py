"""What features are computed of: a gradient computer, and a data set."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
    if not module or not function:
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
