"""What features are computed of: a gradient computer, and a data set."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from helpers import data
from helpers.gradient_computers import AbstractGradientComputer, FunctionalGradientComputer, Given
from helpers.model_outputs import ImageClassificationModelOutput
from helpers.models import MODELS
from helpers.transforms.batches import mapped
from helpers.transforms.numbers import check_count


@dataclass
class Job:
    """A gradient computer, and the samples it is put to.

    Attributes:
        computer: What computes the gradients. Every process makes its own, with the same weights.
        dataset: What `torch.utils.data.DataLoader` takes: it has a length, at least 1, and
            `dataset[i]` is sample i, the same in every process: a tuple of tensors or numbers, or
            of trees of them, or a mapping.
    """

    computer: AbstractGradientComputer
    dataset: Sequence[Given]

    def __post_init__(self) -> None:
        if not len(self.dataset):
            raise ValueError("a job's dataset must hold a sample at least, got none")


def collate(samples: Sequence[Given]) -> Given:
    """Make a batch `(B, ...)` of samples, tuples or mappings; raise TypeError for others."""
    batch = default_collate(list(samples))

    def check(path: str, leaf: Any) -> Tensor:
        if path == "sample" or not isinstance(leaf, Tensor):
            raise TypeError(
                "a sample of a job's dataset must be a mapping or a tuple of tensors or numbers, "
                f"such as (image, label), got {type(samples[0]).__name__}"
            )
        return leaf

    mapped(check, batch, "sample")
    return tuple(batch) if isinstance(batch, list) else batch


def on_digits(model: str, samples: int, seed: int, device: torch.device) -> Job:
    """Make the job of one of `helpers.models.MODELS`, with the weights of a seed, on N digits.

    The end of the model's name will do. Where there are no more digits, they are taken again from
    the first.
    """
    check_count("samples", samples, least=2)
    known = [make for name, make in MODELS.items() if name.lower().endswith(model.lower())]
    if len(known) != 1:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    torch.manual_seed(seed)
    network = known[0]().to(device)
    entries = sum(parameter.numel() for parameter in network.parameters())
    task = ImageClassificationModelOutput()
    computer = FunctionalGradientComputer(network, task, entries, torch.float32, device)
    digits = TensorDataset(*data.load_digits())
    return Job(computer, Subset(digits, [index % len(digits) for index in range(samples)]))


def load(name: str) -> Job:
    """Make the job of `package.module:function`, from the working directory or an import."""
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"job must be package.module:function, got {name!r}")
    sys.path.insert(0, str(Path.cwd()))
    return getattr(importlib.import_module(module), function)()
