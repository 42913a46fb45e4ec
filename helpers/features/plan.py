"""What a folder of features is of. Two runs belong together only if their plans are the same."""

import hashlib
import inspect
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from helpers.ensembles.likeness import content, facts_of
from helpers.features.jobs import Job, collate
from helpers.transforms import checks
from helpers.transforms.batches import mapped

NAME = "plan.json"
_LOOKED_AT = 4096


@dataclass(frozen=True)
class Plan:
    """What the numbers of the features depend on, as far as it is looked at."""

    weights: str  # hash of computer and task, of the model's layers, tensors and source code
    data: str  # hash of the samples: of all, or of 4,096 spread evenly over more
    samples: int
    k: int
    kind: str
    seed: int
    shard: int  # rows of a file
    batch: int  # samples of a batch: other batches give other last bits
    threads: int  # of a process: so do other threads
    device: str
    versions: str  # of torch and NumPy

    def compare(self, folder: Path) -> None:
        """Raise ValueError if a folder has another plan, with what differs."""
        there, here = asdict(read(folder)), asdict(self)
        differing = [
            f"{name} is {there[name]!r} there and {here[name]!r} here"
            for name in sorted(here)
            if there[name] != here[name]
        ]
        if differing:
            raise ValueError(
                f"{folder} holds features of another plan: {'; '.join(differing)}; "
                "choose another folder, or remove this one"
            )


def read(folder: Path) -> Plan:
    """Read the plan of a folder."""
    return Plan(**json.loads((folder / NAME).read_text()))


def make(job: Job, **options: object) -> Plan:
    """Make the plan of a job; `options` are the fields that the job does not say."""
    checks.check_one_process(job.computer.model)
    weights, samples = _hash(_of_weights(job)), _hash(_of_samples(job))
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    return Plan(weights, samples, len(job.dataset), versions=versions, **options)


def _of_weights(job: Job) -> Iterator[bytes]:
    computer, task = job.computer, job.computer.task
    options = {name: value for name, value in vars(task).items() if isinstance(value, float | int)}
    kinds = type(computer).__qualname__, type(task).__qualname__
    yield repr((kinds, options, computer.grad_wrt, computer.dtype)).encode()
    yield repr(facts_of(computer.model)).encode()
    classes = {kind for part in (task, *computer.model.modules()) for kind in type(part).__mro__}
    for kind in sorted(classes, key=repr):  # a forward is not in the weights
        if not kind.__module__.startswith(("torch.", "builtins")):
            with suppress(OSError, TypeError):  # of what was typed at a prompt there is no source
                yield repr((kind, inspect.getsource(kind))).encode()
    for tensor in chain(computer.model.parameters(), computer.model.buffers()):
        yield content(tensor)


def _of_samples(job: Job) -> Iterator[bytes]:
    count = len(job.dataset)
    for index in np.linspace(0, count - 1, min(count, _LOOKED_AT)).round().astype(int).tolist():
        leaves: dict[str, Tensor] = {}
        mapped(leaves.__setitem__, collate([job.dataset[index]]), "")
        for path, leaf in leaves.items():
            yield repr((path, tuple(leaf.shape), leaf.dtype)).encode()
            yield content(leaf)


def _hash(parts: Iterator[bytes]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()
