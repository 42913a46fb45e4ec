"""Processes of one group, each of which runs a case and leaves what it found in a file.

The processes find each other by a file, so that no port is taken.
"""

import importlib
import multiprocessing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

ROOT = Path(__file__).parents[2]


def run(case: str, world: int, folder: Path) -> list[Any]:
    """Run `module:function`, a function of nothing, in several processes.

    What it returned in each, which can be saved, comes back in the order of ranks.
    """
    work = case, world, folder
    # A server imports what takes seconds, once, and each process is a copy of it.
    multiprocessing.set_forkserver_preload(["tests.support.workers", case.partition(":")[0]])
    group = start_processes(_work, work, world, join=False, daemon=True, start_method="forkserver")
    ended = [group.join(timeout=240) for _ in range(world)]  # each time, some of them
    assert ended[-1], "the processes do not end"
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


def _work(rank: int, case: str, world: int, folder: Path) -> None:
    """Be one of the processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder / 'group'}", rank=rank, world_size=world)
    module, _, function = case.partition(":")
    torch.save(getattr(importlib.import_module(module), function)(), folder / f"{rank}.pt")
    dist.destroy_process_group()
