"""Processes of one group, each of which runs a case and leaves what it found in a file.

    python -m tests.support.workers MODULE:FUNCTION FOLDER

The processes find each other by a file, so that no port is taken.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]


def run(case: str, world: int, folder: Path) -> list[Any]:
    """Run a case in several processes.

    Args:
        case: `module:function`; the function takes nothing, and its result can be saved.
        world: How many processes.
        folder: An empty one, for what they leave.

    Returns:
        What the function returned in each, in the order of ranks.
    """
    command = [sys.executable, "-m", "tests.support.workers", case, str(folder)]
    shared = os.environ | {"WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(command, cwd=ROOT, env=shared | {"RANK": str(rank)}, stderr=errors)
        for rank in range(world)
        for errors in [(folder / f"{rank}.txt").open("w")]
    ]
    try:
        ended = [worker.wait(timeout=240) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    said = [(folder / f"{rank}.txt").read_text()[-2000:] for rank in range(world)]
    assert not any(ended), "\n".join(said)
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


def main(case: str, folder: str) -> None:
    """Be one of the processes."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    group = f"file://{Path(folder).resolve() / 'group'}"
    dist.init_process_group("gloo", init_method=group, rank=rank, world_size=world)
    module, _, function = case.partition(":")
    found = getattr(importlib.import_module(module), function)()
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
