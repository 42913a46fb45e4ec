"""Jobs, and the plan that records what a folder's features were computed from."""

import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from helpers.features.likeness import content, facts_of
from helpers.gradient_computers import AbstractGradientComputer, BatchLike
from helpers.transforms import checks
from helpers.transforms.batches import mapped

PLAN = "plan.json"
Plan = dict[str, Any]
_HASHED = 4096  # samples at most


@dataclass
class Job:
    """A gradient computer, and the samples whose gradients it computes.

    Attributes:
        computer: Every process makes its own, with the same weights.
        dataset: It has a length, at least 1, and `dataset[i]` is sample i, the same in every
            process: a tuple of tensors, numbers or pytrees of them, or a mapping.
    """

    computer: AbstractGradientComputer
    dataset: Sequence[BatchLike]

    def __post_init__(self) -> None:
        if not len(self.dataset):
            raise ValueError("a job's dataset must hold at least 1 sample, got none")


def load(name: str) -> Job:
    """Call `module:function`; the module is in the working directory, or can be imported."""
    module_name, _, function_name = name.partition(":")
    if not function_name:
        raise ValueError(f"job must be module:function, got {name!r}")
    sys.path.insert(0, str(Path.cwd()))
    module = importlib.import_module(module_name)
    make_job = getattr(module, function_name)
    return make_job()


def collate(samples: Sequence[BatchLike]) -> BatchLike:
    """Make a batch `(B, ...)` of samples, tuples or mappings; raise TypeError for others."""
    batch = default_collate(list(samples))

    def check(path: str, leaf: Any) -> Tensor:
        # A sample that is a single tensor is refused: nothing says what its label is.
        if path == "sample" or not isinstance(leaf, Tensor):
            raise TypeError(
                "a sample of a job's dataset must be a mapping or a tuple of tensors or numbers, "
                f"such as (image, label), got {type(samples[0]).__name__}"
            )
        return leaf

    mapped(check, batch, "sample")
    return tuple(batch) if isinstance(batch, list) else batch


def make_plan(job: Job, **options: object) -> Plan:
    """List what can change the rows, if only in the last bits: `options`, versions, hashes.

    The weights are hashed with the source code of the model's classes; at most 4,096 samples are
    hashed, evenly spaced. `options` are `k`, `kind`, `seed`, `device`, and `shard`, `batch` and
    `threads`, since other batches and other threads round differently.
    """
    checks.check_one_process(job.computer.model)
    return {
        "weights": _hash(_model_parts(job)),
        "data": _hash(_sample_parts(job)),
        "samples": len(job.dataset),
        "versions": f"torch {torch.__version__}, numpy {np.__version__}",
        **options,
    }


def read_plan(folder: Path) -> Plan:
    """Return what the features in a folder were computed from."""
    return json.loads((folder / PLAN).read_text("utf-8"))


def check_plan(folder: Path, here: Plan) -> None:
    """Raise ValueError if a folder has another plan, and say what differs."""
    there = read_plan(folder)
    differing = []
    for name in sorted(there | here):
        if there.get(name) != here.get(name):
            differing.append(f"{name} is {there.get(name)!r} there and {here.get(name)!r} here")
    if differing:
        raise ValueError(
            f"{folder} holds features of another plan: {'; '.join(differing)}; "
            "choose another folder, or remove this one"
        )


def _model_parts(job: Job) -> Iterator[bytes]:
    """Yield what the gradients of a sample depend on, besides the sample."""
    computer, task = job.computer, job.computer.task
    options = {}
    for name, value in vars(task).items():
        if isinstance(value, float | int):
            options[name] = value
    kinds = type(computer).__qualname__, type(task).__qualname__
    yield repr((kinds, options, computer.grad_wrt, computer.dtype)).encode()
    yield repr(facts_of(computer.model)).encode()
    # The weights do not show the forward pass, so the code is hashed, too.
    classes = set(type(task).__mro__)
    for module in computer.model.modules():
        classes.update(type(module).__mro__)
    for kind in sorted(classes, key=repr):
        if not kind.__module__.startswith(("torch.", "builtins")):
            with suppress(OSError, TypeError):  # a class typed at a prompt has no source
                yield repr((kind, inspect.getsource(kind))).encode()
    for tensor in chain(computer.model.parameters(), computer.model.buffers()):
        yield content(tensor)


def _sample_parts(job: Job) -> Iterator[bytes]:
    """Yield the names, shapes and numbers of samples' tensors."""
    count = len(job.dataset)
    indices = np.linspace(0, count - 1, min(count, _HASHED)).round().astype(int)
    for index in indices.tolist():
        leaves: dict[str, Tensor] = {}  # by path
        mapped(leaves.__setitem__, collate([job.dataset[index]]))
        for path, leaf in leaves.items():
            yield repr((path, tuple(leaf.shape), leaf.dtype)).encode()
            yield content(leaf)


def _hash(parts: Iterator[bytes]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()
