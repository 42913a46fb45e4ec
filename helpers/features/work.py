"""Compute the features of a job: claim a shard, compute it, write it; then the kernel of all."""

import json
import math
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from helpers.features import shards
from helpers.features.jobs import Job, collate
from helpers.features.plan import NAME, Plan
from helpers.features.workers import Workers
from helpers.projection import project_batches
from helpers.transforms.batches import mapped

KERNEL = "kernel.npy"
_BITS = 62  # of an int64 that a sum may use


def compute(job: Job, folder: Path, plan: Plan, workers: Workers) -> str:
    """Compute what is missing in a folder, which gets the plan or must have it; say what was done.

    Raises:
        ValueError: The folder is of another plan, or holds features without one; a shard in it is
            damaged, or the features of a sample are not finite.
        OSError: A file could not be written.
    """
    start = time.monotonic()
    _settle(folder, plan, workers)
    parts = shards.bounds(plan.samples, plan.shard)
    with tqdm(total=plan.samples, unit="rows", disable=workers.rank > 0) as bar:
        for index in workers.claim("shards", len(parts)):
            part, file = parts[index], shards.path(folder, index)
            if file.exists():
                shards.read(file, (part.stop - part.start, plan.k))  # whether it is whole
                workers.count("rows", part.stop - part.start)
                continue
            shards.write(file, _rows(job, plan, part, workers, bar))
        workers.wait()
        bar.update(workers.count("rows") - bar.n)
    _write_kernel(folder, plan, workers)
    size = sum(shards.path(folder, index).stat().st_size for index in range(len(parts)))
    return (
        f"{plan.samples:,} rows, {workers.count('computed'):,} of them computed now, by "
        f"{workers.world} {'process' if workers.world == 1 else 'processes'} in "
        f"{time.monotonic() - start:.1f} s; {size:,} bytes; restarts: {workers.restarts}"
    )


def _settle(folder: Path, plan: Plan, workers: Workers) -> None:
    """Give the folder its plan; raise ValueError if it has another, or features without one."""
    if workers.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / NAME).exists():
            there = sorted(folder.glob("features-*.npy")) + sorted(folder.glob(KERNEL))
            if there:  # somebody else's, perhaps
                raise ValueError(
                    f"{folder} holds features without {NAME}, such as {there[0].name}: choose "
                    "another folder"
                )
            shards.write_whole(folder / NAME, json.dumps(asdict(plan), indent=1).encode() + b"\n")
    workers.wait()
    plan.compare(folder)


def _rows(job: Job, plan: Plan, part: slice, workers: Workers, bar: tqdm) -> np.ndarray:
    """Compute the rows of one shard, `(rows, k)`."""
    device = next((tensor.device for tensor in job.computer.model.parameters()), None)
    features = []
    for batch in shards.bounds(part.stop - part.start, plan.batch):
        samples = [job.dataset[part.start + i] for i in range(batch.start, batch.stop)]
        tensors = mapped(lambda _, tensor: tensor.to(device), collate(samples), "")
        features.append(
            project_batches(job.computer, [tensors], plan.k, kind=plan.kind, seed=plan.seed)
        )
        workers.count("computed", len(samples))
        bar.update(workers.count("rows", len(samples)) - bar.n)
    rows = torch.cat(features).cpu()
    odd = (~rows.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if odd:
        raise ValueError(
            f"the features of sample {part.start + odd[0]} are not finite: mend it, or leave it "
            "out of the dataset"
        )
    return rows.numpy()


def _write_kernel(folder: Path, plan: Plan, workers: Workers) -> None:
    """Write the product of the features with themselves, the same for any number of processes.

    A sum of floating point numbers depends on their order, one of integers does not. So the
    product of each shard is computed alone, and rounded to multiples of one power of two, chosen
    so that the sum of all just fits.
    """
    parts = shards.bounds(plan.samples, plan.shard)

    def product(index: int) -> Tensor:
        part = parts[index]
        rows = shards.read(shards.path(folder, index), (part.stop - part.start, plan.k))
        rows = torch.from_numpy(rows).double()
        return rows.T @ rows

    def largest_of(index: int) -> float:
        return product(index).abs().nan_to_num(math.inf).max().item()  # a maximum may lose NaN

    claimed = workers.claim("products", len(parts))
    largest = workers.largest(max(map(largest_of, claimed), default=0.0))
    if not math.isfinite(largest):
        raise ValueError("the products of the features are not finite: their kernel would not be")
    scale = _BITS - math.frexp(largest * len(parts))[1]
    total = torch.zeros(plan.k, plan.k, dtype=torch.int64)
    for index in workers.claim("sums", len(parts)):
        total += torch.ldexp(product(index), torch.tensor(scale)).round().long()
    workers.sum(total)
    if workers.rank == 0:
        kernel = torch.ldexp(total.double(), torch.tensor(-scale))
        shards.write_whole(folder / KERNEL, shards.content_of(kernel.numpy()))
    workers.wait()
