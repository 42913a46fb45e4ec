"""Execute lessons on a device into `build/<device>/`, and tell how each of them went.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.run --help`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.tooling.lesson import files, parameters

if TYPE_CHECKING:
    from helpers.tooling.lesson.execution import Execution

# What imports torch or Jupyter's packages takes seconds, and comes after the look at what is asked.

BUILD = Path("build")
METADATA = "per_sample_gradients"
"""Where in the metadata of an executed notebook it says how and on what it was executed."""


def run(lesson: Path, values: Mapping[str, int | str], folder: Path) -> Execution:
    """Execute a lesson into `NN_name.ipynb`, or `NN_name.failed.ipynb` as far as it came."""
    import nbformat

    from helpers import devices
    from helpers.study import records
    from helpers.tooling.lesson import drafts
    from helpers.tooling.lesson.execution import execute

    done = execute(lesson, values)
    record = asdict(records.make(devices.resolve(values["device"]), []))
    about = {
        **{name: getattr(done, name) for name in ("failure", "seconds", "peak_memory")},
        "parameters": dict(values),
        **{name: record[name] for name in ("machine", "versions", "date")},
    }
    done.notebook.metadata[METADATA] = nbformat.from_dict(about)
    new, earlier = folder / lesson.name, folder / f"{lesson.stem}.failed.ipynb"
    if done.failure:
        new, earlier = earlier, new
    with drafts.replaced(new) as draft:
        nbformat.write(done.notebook, draft)
    earlier.unlink(missing_ok=True)
    return done


def table(done: Sequence[Execution]) -> str:
    """Lay out how the lessons went: lesson, result, run time, peak memory."""
    lines = [f"{'lesson':<24}  result  run time  peak memory"]
    for each in done:
        memory = ", ".join(
            f"{size / 2**20:,.0f} MiB{' on the GPU' if kind == 'cuda' else ''}"
            for kind, size in each.peak_memory.items()
        )
        outcome, seconds = "failed" if each.failure else "passed", f"{each.seconds:.1f} s"
        lines.append(f"{each.lesson.stem:<24}  {outcome}  {seconds:>8}  {memory or 'unknown'}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, 1 when a lesson failed, 2 when something asked for will not do."""
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.run", description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers or names; none means all")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    parser.add_argument("--params", nargs="*", default=[], metavar="NAME=VALUE")
    asked = parser.parse_args(arguments)
    try:
        chosen = files.choose(asked.lessons)
        for lesson in chosen:
            parameters.check_names(lesson, asked.params)
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", asked.device.strip().lower()):
            raise ValueError(f"device is auto, cpu, cuda, cuda:1 or mps, got {asked.device!r}")
        from helpers import devices
        from helpers.tooling.lesson.execution import end_cleanly_on_signals

        device = devices.resolve(asked.device)
        plan = {lesson: parameters.check(lesson, asked.params, device) for lesson in chosen}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    folder = BUILD / str(device).replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    if __name__ == "__main__":
        end_cleanly_on_signals()
    done = []
    try:
        for lesson, values in plan.items():
            done.append(run(lesson, values, folder))
    finally:  # after Ctrl-C, too
        ended = f"{len(done)} of {len(plan)} lessons came to their end"
        print(f"\n{table(done)}\n\n{ended}; executed, they are in {folder}/.", flush=True)
    for each in done:
        if each.failure:
            trace = folder / f"{each.lesson.stem}.failed.ipynb"
            print(f"failed: {each.failure}; see {trace}", file=sys.stderr)
    return 1 if any(each.failure for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
