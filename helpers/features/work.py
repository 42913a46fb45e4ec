"""Compute the features of a job: claim a shard, compute it, write it, until all are there."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from helpers.features import shards
from helpers.features.job import PLAN, Job, Plan, check_plan, collate
from helpers.gradient_computers import BatchLike
from helpers.projection import project_batches
from helpers.transforms.batches import mapped

_PATIENCE = timedelta(days=1)  # for the slowest shard of another process


@contextmanager
def joined() -> Iterator[dist.Store]:
    """Join the process group (of one, without torchrun), and yield its store."""
    store = dist.HashStore()
    rank, world = 0, 1
    if "RANK" in os.environ:  # torchrun set it
        store, rank, world = next(dist.rendezvous("env://", timeout=_PATIENCE))
        # torchrun keeps its store across restarts, with the addresses of dead processes in it, so
        # each attempt uses a prefix of its own.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt-{attempt}-of-{world}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=_PATIENCE)
    try:
        yield store
    finally:
        dist.destroy_process_group()


def compute(job: Job, folder: Path, plan: Plan, store: dist.Store) -> None:
    """Compute the missing shards of a folder with this plan, or a new folder; print the counts.

    Raises:
        ValueError: The folder has another plan, or features without one; a shard in it is damaged,
            or the features of a sample are not finite.
        OSError: A file could not be written.
    """
    first = dist.get_rank() == 0
    if first:
        _settle(folder, plan)
    dist.barrier()
    check_plan(folder, plan)
    planned = shards.files_of(folder, plan)
    with tqdm(total=plan["samples"], unit="rows", disable=not first) as bar:
        while True:
            # A counter of all processes: whichever is free takes the next shard.
            index = store.add("claimed", 1) - 1
            if index >= len(planned):
                break
            file, span = planned[index]
            count = span.stop - span.start
            if file.exists():
                shards.read(file, span, plan)  # which refuses a damaged one
            else:
                shards.write_rows(file, _rows(job, plan, span))
                store.add("computed", count)
            done = store.add("rows", count)  # by all processes
            bar.update(done - bar.n)
        dist.barrier()
        done = store.add("rows", 0)
        bar.update(done - bar.n)
    if first:
        shards.remove_drafts(folder)
        new, processes = store.add("computed", 0), dist.get_world_size()
        print(f"{plan['samples']:,} rows, {new:,} of them new; processes: {processes}")


def _settle(folder: Path, plan: Plan) -> None:
    """Give the folder its plan, if it has none; raise ValueError if it has features already."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / PLAN).exists():
        if next(folder.glob("features-*.npy"), None):
            raise ValueError(f"{folder} holds features without {PLAN}: choose another folder")
        shards.write(folder / PLAN, json.dumps(plan, indent=1).encode() + b"\n")


def _rows(job: Job, plan: Plan, span: slice) -> np.ndarray:
    """Compute the rows of one shard, `(rows, k)`."""
    parameter = next(job.computer.model.parameters(), None)
    device = None if parameter is None else parameter.device

    def to_device(path: str, tensor: Tensor) -> Tensor:
        return tensor.to(device)

    def batches() -> Iterator[BatchLike]:
        for batch in shards.bounds(span.stop - span.start, plan["batch"]):
            samples = [job.dataset[span.start + i] for i in range(batch.start, batch.stop)]
            yield mapped(to_device, collate(samples))

    features = project_batches(
        job.computer, batches(), plan["k"], kind=plan["kind"], seed=plan["seed"]
    )
    rows = features.cpu()
    is_finite = rows.isfinite().all(dim=1)
    if not is_finite.all():
        first = is_finite.logical_not().nonzero()[0].item()
        raise ValueError(f"the features of sample {span.start + first} are not finite")
    return rows.numpy()
