"""Measure what lesson 7 speaks of on this machine, each candidate in its own process: `make bench`.

Prints tables and writes `build/<device>/bench.json`, after each comparison what there is so far.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from helpers import devices
from helpers.study import candidates, peers, processes, records, tables
from helpers.study.records import DEFAULT, Candidate, Study, Task

PLAN = (
    ("gradients", "SimpleCNN", 64),
    ("jacobians", "MLP", 256),
    ("gradients", "MLP", 64),
    ("gradients", "transformer", 64),
)
"""Group, model, batch size: what lesson 7 reads of a record."""


def on(device: torch.device, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Leave out what says nothing of a GPU: the allocators of a CPU, and JAX, which runs on one."""
    cpu, jax = device.type == "cpu", peers.JAX
    return [c for c in candidates if cpu or (c.allocator == DEFAULT and c.method not in jax)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, 1 if disturbed, 2 if the device will not do, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.bench", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    try:
        device = devices.resolve(parser.parse_args(arguments).device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    path = Path("build") / str(device).replace(":", "-") / "bench.json"
    done: list[Study] = []
    for group, model, size in PLAN:
        chosen = on(device, candidates.of_group(group))
        try:
            done.append(processes.run(group, Task(model, size, device=str(device)), chosen))
        except KeyboardInterrupt:  # before a round of this comparison was finished
            return 130
        records.write(records.make(device, done), path)
        table = tables.times(done[-1]).join(tables.memory(done[-1])).fillna("")
        print(f"\n{group}, {model}, B = {size}\n{table.to_string()}")
        for absence in done[-1].missing:
            print(f"  {absence.candidate}: {absence.why}")
        if "interrupted" in (done[-1].cut_short or ""):
            return 130
    print(f"\nThe record is {path}: to keep it, copy it to notebooks/measurements/")
    disturbed = records.disturbed(done)
    if disturbed:
        spread = f"a spread above {records.BOUND:.0%} of the median"
        print(f"Not to be kept: {spread}. Measure again when nothing else runs:", file=sys.stderr)
        print(*disturbed, sep="\n", file=sys.stderr)
    return int(bool(disturbed))


if __name__ == "__main__":
    sys.exit(main())
