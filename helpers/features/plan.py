"""What a folder of features is of. Two runs belong together only if their plans are the same."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from helpers.features.jobs import Job, collate
from helpers.transforms import checks
from helpers.transforms.settings import content, described, settings

NAME = "plan.json"
_LOOKED_AT = 4096


@dataclass(frozen=True)
class Plan:
    """All that the numbers of the features depend on.

    Attributes:
        weights: Hash of the computer's task, of its model's layers, parameters and buffers.
        data: Hash of the samples: of all, or of 4,096 spread evenly over more.
        samples: N.
        k: How many numbers a sample keeps.
        kind: As in `helpers.projection.project_batches`.
        seed: Of the projection.
        shard: Rows of a file.
        batch: Samples of a batch: other batches give other last bits.
        threads: Of a process: so do other threads.
        device: `"cpu"` or `"cuda"`.
        versions: Of torch and NumPy.
    """

    weights: str
    data: str
    samples: int
    k: int
    kind: str
    seed: int
    shard: int
    batch: int
    threads: int
    device: str
    versions: str

    def write(self, folder: Path) -> None:
        """Write the plan into a folder, whole or not at all."""
        draft = folder / f"{NAME}.{os.getpid()}"
        draft.write_text(json.dumps(asdict(self), indent=1) + "\n")
        draft.replace(folder / NAME)

    def compare(self, folder: Path) -> None:
        """Refuse a folder of another plan.

        Raises:
            ValueError: With what differs.
        """
        there, here = _read(folder), asdict(self)
        differing = [
            f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
            for name in sorted(there.keys() | here.keys())
            if there.get(name) != here.get(name)
        ]
        if differing:
            raise ValueError(
                f"{folder} holds features of another plan: {'; '.join(differing)}; "
                "choose another folder, or remove this one"
            )


def read(folder: Path) -> Plan:
    """Read the plan of a folder.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged.
    """
    if not (folder / NAME).exists():
        raise FileNotFoundError(f"{folder} holds no {NAME}: it is no folder of features")
    found = _read(folder)
    if found.keys() != {field.name for field in fields(Plan)}:
        raise ValueError(_damaged(folder))
    return Plan(**found)


def _read(folder: Path) -> dict[str, object]:
    try:
        found = json.loads((folder / NAME).read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(_damaged(folder))
    return found


def _damaged(folder: Path) -> str:
    return f"{folder / NAME} is no plan of features, or a damaged one: choose another folder"


def make(job: Job, **options: object) -> Plan:
    """Make the plan of a job.

    Args:
        job: What is computed.
        options: The fields of `Plan` that the job does not say.

    Raises:
        TypeError: A sample is no tuple of tensors and numbers.
        ValueError: The model lies in several processes: each is to have all of its weights.
    """
    checks.check_one_process(job.computer.model)
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    return Plan(
        weights=_hash(_of_weights(job)),
        data=_hash(_of_samples(job)),
        samples=len(job.dataset),
        versions=versions,
        **options,
    )


def _of_weights(job: Job) -> Iterator[bytes]:
    computer, model = job.computer, job.computer.model
    task, kind = type(computer.task).__qualname__, type(computer).__qualname__
    options = described(getattr(computer.task, "__dict__", {}))
    yield repr((kind, task, options, computer.grad_wrt, computer.dtype)).encode()
    tensors = dict(chain(model.named_parameters(), model.named_buffers()))
    for name, module in model.named_modules():
        own = settings(module, {id(tensor) for tensor in tensors.values()})
        written = re.sub("0x[0-9a-f]+", "", module.extra_repr())  # an address in a process
        yield repr((name, type(module).__qualname__, written, module.training, own)).encode()
    for name, tensor in tensors.items():
        yield repr((name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)).encode()
        yield content(tensor)


def _of_samples(job: Job) -> Iterator[bytes]:
    count = len(job.dataset)
    for index in np.linspace(0, count - 1, min(count, _LOOKED_AT)).round().astype(int).tolist():
        for part in collate([job.dataset[index]]):
            yield repr((tuple(part.shape), part.dtype)).encode()
            yield content(part)


def _hash(parts: Iterator[bytes]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()
