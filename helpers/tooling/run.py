"""Execute lessons on a device into `build/<device>/`, and report how each went.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.run --help`.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from helpers.tooling.lesson import drafts, endings, files, parameters


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, 1 when a lesson failed, 2 when an argument is invalid."""
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.run", description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers or names; none means all")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps or xpu")
    parser.add_argument("--params", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(arguments)
    try:
        chosen = files.choose(options.lessons)
        values_for = {}
        for lesson in chosen:
            values_for[lesson] = parameters.check(lesson, options.params)
        from helpers import devices  # torch and papermill take seconds
        from helpers.tooling.lesson import environment, together

        environment.prepare()
        device = str(devices.resolve(options.device))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if __name__ == "__main__":
        endings.cleanly_on_signals()
    folder = Path("build", device.replace(":", "-"))
    with ExitStack() as stack:
        try:
            for lesson in chosen:
                stack.enter_context(drafts.alone(folder / lesson.name))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        done = together.execute_into(folder, values_for, device)
    failed = [ended for ended in done if ended.failure]
    for ended in failed:
        trace = folder / f"{ended.lesson.stem}.failed.ipynb"
        print(f"failed: {ended.failure}; see {trace}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    endings.in_one_sentence()
    sys.exit(main())
