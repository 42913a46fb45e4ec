"""Measure everything that lesson 7 measures, and more of it: `make bench`.

Prints tables and writes `build/<device>/bench.json`, after each comparison what there is so far.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers import devices
from helpers.study import comparison, records
from helpers.study.candidates import Task

SIZES = (1, 4, 16, 64, 256, 512)
GROWING = ("batch gradient", "loop", "vmap(grad)", "vmap(grad), freed memory kept")
PLAN = (
    ("gradients", "SimpleCNN", 64),
    ("jacobians", "MLP", 256),
    ("reductions", "SimpleCNN", 64),
    ("reductions", "SimpleCNN", 1024),
    ("gradients", "MLP", 64),
    ("gradients", "transformer", 64),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, 2 when the device will not do, 130 when it was interrupted.
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
    done: list[comparison.Study] = []
    interrupted = False
    try:
        for group, model, size in PLAN:
            task = Task(model, size, device=str(device))
            done.append(comparison.run(group, task, rounds=5, budget=60))
            records.write(records.make(device, done), path)
            print(f"\n{group}, {model}, B = {size}\n{comparison.table(done[-1]).to_string()}")
            for name, why in (done[-1]["absent"] | done[-1]["failed"]).items():
                print(f"  {name}: {why}")
            interrupted = "interrupted" in (done[-1]["cut_short"] or "")
            if interrupted:
                break
        else:
            done += comparison.grow("gradients", Task(device=str(device)), GROWING, SIZES)
            records.write(records.make(device, done), path)
    except KeyboardInterrupt:
        interrupted = True
    if done:
        print(
            f"\n{'Interrupted; what was finished' if interrupted else 'The record'} is in {path}. "
            "To keep it: copy it to notebooks/measurements/, named after this machine."
        )
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
