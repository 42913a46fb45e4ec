"""Measure what lesson 7 speaks of on this machine, each candidate in its own process: `make bench`.

Prints tables and writes `build/<device>/bench.json`, after each comparison what there is so far.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from helpers import devices
from helpers.study import candidates, comparison, peers, records, tables
from helpers.study.facts import DEFAULT, KEEP_FREED, REFERENCE, Candidate, Study, Task

SIZES = (1, 4, 16, 64, 256, 512)
GROWING = (
    Candidate(REFERENCE),
    Candidate(REFERENCE, allocator=KEEP_FREED),
    Candidate("loop"),
    Candidate("vmap(grad)"),
    Candidate("vmap(grad)", allocator=KEEP_FREED),
)
PLAN = (
    ("gradients", "SimpleCNN", 64),
    ("jacobians", "MLP", 256),
    ("reductions", "SimpleCNN", 64),
    ("reductions", "SimpleCNN", 1024),
    ("gradients", "MLP", 64),
    ("gradients", "transformer", 64),
)


def on(device: torch.device, known: Iterable[Candidate]) -> list[Candidate]:
    """Leave out what says nothing of a GPU: the allocators of a CPU, and JAX, which runs on one."""
    return [
        candidate
        for candidate in known
        if device.type == "cpu"
        or (candidate.allocator == DEFAULT and candidate.method not in peers.jax.NAMES)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, 1 when something disturbed the measurement, 2 when the device will not
        do, 130 when it was interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.bench", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    asked = parser.parse_args(arguments)
    try:
        device = devices.resolve(asked.device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    path = Path("build") / str(device).replace(":", "-") / "bench.json"
    done: list[Study] = []
    interrupted = False
    try:
        for group, model, size in PLAN:
            task = Task(model, size, device=str(device))
            chosen = on(device, candidates.GROUPS[group].candidates)
            done.append(comparison.run(group, task, chosen=chosen, rounds=5, budget=60))
            records.write(records.make(device, done), path)
            table = tables.times(done[-1]).join(tables.memory(done[-1])).fillna("")
            print(f"\n{group}, {model}, B = {size}\n{table.to_string()}")
            for remark in tables.remarks(done[-1]):
                print(f"  {remark}")
            interrupted = "interrupted" in (done[-1].cut_short or "")
            if interrupted:
                break
        else:
            task = Task(device=str(device))
            done += comparison.grow("gradients", task, on(device, GROWING), SIZES)
            records.write(records.make(device, done), path)
    except KeyboardInterrupt:
        interrupted = True
    if done:
        print(
            f"\n{'Interrupted; what was finished' if interrupted else 'The record'} is in {path}. "
            "To keep it: copy it to notebooks/measurements/, named after this machine."
        )
    disturbed = records.disturbed(done)
    if disturbed:
        print(
            f"Not to be kept: with a spread above {records.BOUND:.0%} of the median, these say "
            "nothing of this machine. Measure again when nothing else runs:",
            *disturbed,
            sep="\n  ",
            file=sys.stderr,
        )
    return 130 if interrupted else int(bool(disturbed))


if __name__ == "__main__":
    sys.exit(main())
