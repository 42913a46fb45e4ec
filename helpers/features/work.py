"""Compute the features of a job: claim a shard, compute it, write it; then the kernel of all."""

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from helpers.features import shards
from helpers.features.jobs import Job, collate
from helpers.features.plan import NAME, Plan
from helpers.projection import project_batches
from helpers.transforms.batches import mapped

KERNEL = "kernel.npy"
_BITS = 62  # of an int64 that a sum may use
_PATIENCE = timedelta(days=1)  # for the slowest shard of another process


def rank() -> int:
    """Return which of the processes that torchrun started this is; 0 if it started none."""
    return int(os.environ.get("RANK", 0))


def _restarts() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


@contextmanager
def joined() -> Iterator[dist.Store]:
    """Join the group of all processes, of one without torchrun, and yield what they share."""
    store, world = dist.HashStore(), 1
    if "RANK" in os.environ:
        store, _, world = next(dist.rendezvous("env://", timeout=_PATIENCE))
        # torchrun keeps its store when it starts processes again, with the addresses of those
        # that died in it: each attempt reads and writes under a name of its own.
        store = dist.PrefixStore(f"attempt-{_restarts()}-of-{world}", store)
    options = {"rank": rank(), "world_size": world, "timeout": _PATIENCE}
    dist.init_process_group("gloo", store=store, **options)  # what is reduced lies on the CPU
    try:
        yield store
    finally:
        dist.destroy_process_group()


def compute(job: Job, folder: Path, plan: Plan, store: dist.Store) -> str:
    """Compute what is missing in a folder, which gets the plan or must have it; say what was done.

    Raises:
        ValueError: The folder is of another plan, or holds features without one; a shard in it is
            damaged, or the features of a sample are not finite.
        OSError: A file could not be written.
    """
    start = time.monotonic()
    _settle(folder, plan)
    known = shards.of_plan(folder, plan)
    with tqdm(total=plan.samples, unit="rows", disable=rank() > 0) as bar:
        for file, part in _claimed(known, store, "shards"):
            count = part.stop - part.start
            if file.exists():
                shards.read(file, part, plan)  # whether it is whole
            else:
                shards.write(file, _rows(job, plan, part))
                store.add("computed", count)
            bar.update(store.add("rows", count) - bar.n)
        dist.barrier()
        bar.update(store.add("rows", 0) - bar.n)
    _write_kernel(folder, plan, store)
    processes, size = dist.get_world_size(), sum(file.stat().st_size for file, _ in known)
    return (
        f"{plan.samples:,} rows, {store.add('computed', 0):,} of them computed now, by "
        f"{processes} {'process' if processes == 1 else 'processes'} in "
        f"{time.monotonic() - start:.1f} s; {size:,} bytes; restarts: {_restarts()}"
    )


def _claimed(
    known: list[tuple[Path, slice]], store: dist.Store, name: str
) -> Iterator[tuple[Path, slice]]:
    """Yield each shard in one process: who is free takes the next."""
    while (index := store.add(name, 1) - 1) < len(known):
        yield known[index]


def _settle(folder: Path, plan: Plan) -> None:
    """Give the folder its plan; raise ValueError if it has another, or features without one."""
    if rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / NAME).exists():
            if there := [*sorted(folder.glob("features-*.npy")), *folder.glob(KERNEL)]:
                raise ValueError(
                    f"{folder} holds features without {NAME}, such as {there[0].name}: choose "
                    "another folder"
                )
            shards.write_whole(folder / NAME, json.dumps(asdict(plan), indent=1).encode() + b"\n")
    dist.barrier()
    plan.compare(folder)


def _rows(job: Job, plan: Plan, part: slice) -> np.ndarray:
    """Compute the rows of one shard, `(rows, k)`."""
    device = next((tensor.device for tensor in job.computer.model.parameters()), None)

    def batches() -> Iterator[object]:
        for batch in shards.bounds(part.stop - part.start, plan.batch):
            samples = [job.dataset[part.start + i] for i in range(batch.start, batch.stop)]
            yield mapped(lambda _, tensor: tensor.to(device), collate(samples), "")

    rows = project_batches(job.computer, batches(), plan.k, kind=plan.kind, seed=plan.seed).cpu()
    odd = (~rows.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if odd:
        raise ValueError(
            f"the features of sample {part.start + odd[0]} are not finite: mend it, or leave it "
            "out of the dataset"
        )
    return rows.numpy()


def _write_kernel(folder: Path, plan: Plan, store: dist.Store) -> None:
    """Write the product of the features with themselves, the same for any number of processes.

    A sum of floating point numbers depends on their order, one of integers does not. So the
    product of each shard is computed alone, and rounded to multiples of one power of two, chosen
    so that the sum of all just fits.
    """
    known = shards.of_plan(folder, plan)

    def products(name: str) -> Iterator[Tensor]:
        for file, part in _claimed(known, store, name):
            rows = torch.from_numpy(shards.read(file, part, plan)).double()
            yield rows.T @ rows

    largest = torch.zeros((), dtype=torch.float64)
    for product in products("products"):
        largest = largest.maximum(product.abs().nan_to_num(math.inf).max())  # which may lose NaN
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    if not largest.isfinite():
        raise ValueError("the products of the features are not finite: their kernel would not be")
    scale = torch.tensor(_BITS - math.frexp(largest.item() * len(known))[1])
    total = torch.zeros(plan.k, plan.k, dtype=torch.int64)
    for product in products("sums"):
        total += torch.ldexp(product, scale).round().long()
    dist.all_reduce(total)
    if rank() == 0:
        shards.write(folder / KERNEL, torch.ldexp(total.double(), -scale).numpy())
    dist.barrier()
