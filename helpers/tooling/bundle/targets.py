"""How much faster than a loop: measured on one device in about a minute, with peaks of memory.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.bundle.targets`. The record
goes to `build/<device>/targets.json`. `helpers.tooling.bench` measures the same and much more.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers import devices
from helpers.study import comparison, records, tables
from helpers.study.facts import REFERENCE, Candidate, Study, Task

TARGET = 25
"""How many times as fast as the loop a GPU has to be: PyTorch's tutorial on per-sample gradients
reports it of an A100, for the gradients of this CNN at this batch size."""
PLAN = (
    ("gradients", "SimpleCNN", 64, "loop", ("vmap(grad)",)),
    ("jacobians", "MLP", 256, "double loop", ("vmap(jacrev)", "func_jacobians")),
)
"""Group, model, batch size; the loop, and what is compared with it."""


def verdicts(study: Study, loop: str, ways: Sequence[str], wanted: float | None) -> dict[str, bool]:
    """Compare ways with their loop.

    Args:
        study: What was measured.
        loop: The method that goes from sample to sample.
        ways: Methods that take the batch at once.
        wanted: How many times as fast the first of them has to be; None means that it need not be.

    Returns:
        `{sentence: whether it is as wanted}`.

    Raises:
        KeyError: One was not measured, with the reason if there is one.
    """
    said = {}
    for way in ways:
        row = study.row(way)
        faster = study.row(loop).median / row.median
        units = row.median / study.row(REFERENCE).median
        sentence = f"{way}: {faster:.1f} times as fast as the {loop}"
        good = True
        if wanted is not None and way == ways[0]:
            good = faster >= wanted
            sentence += f" (target {wanted}: {'reached' if good else 'MISSED'})"
        said[f"{sentence}, {units:.1f} batch gradients"] = good
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, 1 when a target is missed or something was not measured, 2 when the
        device will not do.
    """
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.bundle.targets")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    asked = parser.parse_args(arguments)
    try:
        device = devices.resolve(asked.device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    on_gpu = device.type == "cuda"
    path = Path("build") / str(device).replace(":", "-") / "targets.json"
    done: list[Study] = []
    good = True
    for group, model, size, loop, ways in PLAN:
        chosen = [Candidate(name) for name in (REFERENCE, "fill owned memory", *ways, loop)]
        task = Task(model, size, device=str(device))
        done.append(study := comparison.run(group, task, chosen, budget=60))
        records.write(record := records.make(device, done), path)
        if len(done) == 1:
            print(f"{record.machine.device}, {', '.join(map(' '.join, record.versions.items()))}")
        print(f"\n{group}, {model}, B = {size}, float32 without TF32; peaks of", end=" ")
        print("tensors in the GPU's memory" if on_gpu else "the process")
        print(tables.times(study).join(tables.memory(study)).fillna("").to_string())
        for remark in tables.remarks(study):
            print(f"  {remark}")
        try:
            found = verdicts(study, loop, ways, TARGET if on_gpu else None)
        except KeyError as error:
            good = False
            print(error.args[0], file=sys.stderr)
            continue
        good = good and all(found.values())
        print(*found, sep="\n")
    print(f"\nThe record is in {path}.")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
