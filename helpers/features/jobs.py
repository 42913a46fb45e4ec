"""What features are computed of: a gradient computer, and a data set."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from helpers import data
from helpers.gradient_computers import AbstractGradientComputer, FunctionalGradientComputer
from helpers.model_outputs import ImageClassificationModelOutput
from helpers.models import MODELS


@dataclass
class Job:
    """A gradient computer, and the samples it is put to.

    Attributes:
        computer: What computes the gradients. Every process makes its own, with the same weights.
        dataset: What `torch.utils.data.DataLoader` takes: it has a length, and `dataset[i]` is
            sample i, a tuple of tensors or numbers, the same in every process.

    Raises:
        TypeError: The computer is none, or the data set has no length.
        ValueError: It has no sample.
    """

    computer: AbstractGradientComputer
    dataset: Sequence[tuple[Any, ...]]

    def __post_init__(self) -> None:
        if not isinstance(self.computer, AbstractGradientComputer):
            raise TypeError(
                "a job's computer must be a gradient computer of helpers.gradient_computers, "
                f"got {type(self.computer).__name__}"
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
        parts = sample if isinstance(sample, tuple | list) else [sample, None]
        if not all(isinstance(part, Tensor | np.ndarray | Number) for part in parts):
            kinds = ", ".join(type(part).__name__ for part in parts if part is not None)
            raise TypeError(
                "a sample of a job's dataset must be a tuple of tensors or numbers, such as "
                f"(image, label), got {type(sample).__name__}: {kinds}"
            )
    shapes = {tuple(tuple(np.shape(part)) for part in sample) for sample in samples}
    if len(shapes) > 1:
        got = " and ".join(map(str, sorted(shapes)))
        raise ValueError(f"the samples of a job's dataset must have one shape, got {got}")
    return tuple(default_collate([tuple(sample) for sample in samples]))


def on_digits(model: str, samples: int, seed: int, device: torch.device) -> Job:
    """Make the job of one of the collection's networks, as it is initialised from a seed.

    Args:
        model: One of `helpers.models.MODELS`.
        samples: N, how many digits; again from the first when there are no more of them.
        seed: Of the weights.
        device: Where the model computes.
    """
    torch.manual_seed(seed)
    network = MODELS[model]().to(device)
    entries = sum(parameter.numel() for parameter in network.parameters())
    task = ImageClassificationModelOutput()
    computer = FunctionalGradientComputer(network, task, entries, torch.float32, device)
    digits = TensorDataset(*data.load_digits())
    return Job(computer, Subset(digits, [index % len(digits) for index in range(samples)]))


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
        make = getattr(importlib.import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"job {name!r}: {error}") from error
    job = make()
    if not isinstance(job, Job):
        raise ValueError(f"job {name!r} must return a helpers.features.Job, got {type(job)}")
    return job
