"""Execute lessons on a device into `build/<device>/`, and report how each went.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.run --help`.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers.tooling.lesson import files, parameters


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, 1 when a lesson failed, 2 when an argument is invalid."""
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.run", description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers or names; none means all")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    parser.add_argument("--params", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(arguments)
    try:
        chosen = files.choose(options.lessons)
        plan = {lesson: parameters.check(lesson, options.params) for lesson in chosen}
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", options.device.strip().lower()):
            raise ValueError(f"device is auto, cpu, cuda, cuda:1 or mps, got {options.device!r}")
        from helpers import devices  # torch and papermill take seconds
        from helpers.tooling.lesson import execution

        device = str(devices.resolve(options.device))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if __name__ == "__main__":
        execution.end_cleanly_on_signals()
    folder = Path("build", device.replace(":", "-"))
    folder.mkdir(parents=True, exist_ok=True)
    done = []
    try:
        for lesson, values in plan.items():
            result, draft = folder / lesson.name, folder / f"{lesson.stem}.failed.ipynb"
            done.append(execution.execute(lesson, draft, values | {"device": device}))
            if done[-1].failure:
                result.unlink(missing_ok=True)
            else:
                draft.replace(result)
    finally:  # after Ctrl-C, too
        ended = f"{len(done)} of {len(plan)} lessons were executed"
        table = f"{execution.table(done)}\n\n{ended}; the results are in {folder}/."
        (folder / "table.txt").write_text(f"{table}\n")
        print(f"\n{table}", flush=True)
    failed = [ended_run for ended_run in done if ended_run.failure]
    for ended_run in failed:
        trace = folder / f"{ended_run.lesson.stem}.failed.ipynb"
        print(f"failed: {ended_run.failure}; see {trace}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
