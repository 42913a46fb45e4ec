"""What a folder of features is of. Two runs belong together only if their plans are the same."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import default_collate

from helpers.features.jobs import Job
from helpers.transforms import checks

NAME = "plan.json"
_LOOKED_AT = 4096


@dataclass(frozen=True)
class Plan:
    """All that the numbers of the features depend on.

    Attributes:
        weights: Hash of the computer's task, of its parameters and buffers.
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
        there = json.loads((folder / NAME).read_text())
        here = asdict(self)
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
    """
    if not (folder / NAME).exists():
        raise FileNotFoundError(f"{folder} holds no {NAME}: it is no folder of features")
    return Plan(**json.loads((folder / NAME).read_text()))


def make(job: Job, **options: object) -> Plan:
    """Make the plan of a job.

    Args:
        job: What is computed.
        options: The fields of `Plan` that the job does not say.

    Raises:
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
    computer = job.computer
    yield repr((type(computer.task).__qualname__, computer.grad_wrt, computer.dtype)).encode()
    for name, tensor in computer.model.state_dict(keep_vars=True).items():
        yield repr((name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)).encode()
        yield _bytes(tensor)


def _of_samples(job: Job) -> Iterator[bytes]:
    count = len(job.dataset)
    for index in np.linspace(0, count - 1, min(count, _LOOKED_AT)).round().astype(int).tolist():
        for part in default_collate([job.dataset[index]]):
            yield repr((tuple(part.shape), part.dtype)).encode()
            yield _bytes(part)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _hash(parts: Iterator[bytes]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()
