"""Execute lessons on a device into `build/<device>/`, and tell how each of them went.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.run --help`.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import nbformat

from helpers import devices
from helpers.study import records
from helpers.tooling.lesson import drafts, files, parameters
from helpers.tooling.lesson.execution import Execution, end_cleanly_on_signals

BUILD = Path("build")
METADATA = "per_sample_gradients"
"""Where in the metadata of an executed notebook it says how and on what it was executed."""


@dataclass
class Result:
    """How the execution of a lesson went."""

    lesson: Path
    seconds: float
    failure: str | None
    peak_memory: dict[str, int]


def execute(
    lesson: Path, values: Mapping[str, int | str], folder: Path, asked: Sequence[str] = ()
) -> Result:
    """Execute one lesson into a folder.

    Until it is finished, what an earlier run left there stays.

    Args:
        lesson: The notebook.
        values: Its parameters, checked.
        folder: Gets `NN_name.ipynb`, or `NN_name.failed.ipynb` as far as a failed run came.
        asked: The names of all lessons that the run was asked for.

    Returns:
        How it went; a failure in the lesson does not raise.

    Raises:
        ValueError: The file cannot be written.
    """
    used = parameters.defaults(lesson) | values
    execution = Execution(lesson)
    failure = None
    start = time.perf_counter()
    try:
        execution.run(values)
    except Exception as error:
        failure = execution.failure(error)
    result = Result(lesson, time.perf_counter() - start, failure, execution.peak_memory)
    about = {
        "failure": failure,
        "seconds": result.seconds,
        "peak_memory": result.peak_memory,
        "parameters": used,
        "asked": list(asked),
        **asdict(records.make(devices.resolve(used["device"]), [])),
    }
    del about["studies"]
    executed = execution.executed or files.read(lesson)  # it failed before it began
    executed.metadata[METADATA] = nbformat.from_dict(about)
    finished, failed = folder / lesson.name, folder / f"{lesson.stem}.failed.ipynb"
    new, earlier = (failed, finished) if failure else (finished, failed)
    with drafts.replaced_file(new) as draft:
        nbformat.write(executed, draft)
    earlier.unlink(missing_ok=True)
    return result


def table(results: Sequence[Result]) -> str:
    """Lay out how the lessons went: lesson, result, run time, peak memory."""
    rows = [("lesson", "result", "run time", "peak memory")]
    for result in results:
        memory = ", ".join(
            f"{size / 2**20:,.0f} MiB{' on the GPU' if kind == 'cuda' else ''}"
            for kind, size in result.peak_memory.items()
        )
        outcome = "failed" if result.failure else "passed"
        rows.append((result.lesson.stem, outcome, f"{result.seconds:.1f} s", memory or "unknown"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (
        f"{lesson:<{widths[0]}}  {outcome:<{widths[1]}}  {seconds:>{widths[2]}}  {memory}"
        for lesson, outcome, seconds, memory in rows
    )
    return "\n".join(aligned)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: check everything asked for, execute, report.

    Returns:
        The exit status: 0, 1 when a lesson failed, 2 when something asked for will not do or the
        results cannot be written.
    """
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.run", description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers or names; none means all")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    parser.add_argument("--params", nargs="*", default=[], metavar="NAME=VALUE")
    asked = parser.parse_args(arguments)
    try:
        device = devices.resolve(asked.device)
        given = parameters.parse(asked.params)
        plan = {
            lesson: parameters.check(lesson, given, device)
            for lesson in files.choose(asked.lessons)
        }
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    folder = BUILD / str(device).replace(":", "-")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # it can be written, before minutes are spent
    except OSError as error:
        print(f"cannot write {folder}: {error.strerror}", file=sys.stderr)
        return 2
    asked = [lesson.stem for lesson in plan]
    results = [execute(lesson, values, folder, asked) for lesson, values in plan.items()]
    print(f"\n{table(results)}\n\nThe executed lessons are in {folder}/.", flush=True)
    for result in results:
        if result.failure:
            trace = folder / f"{result.lesson.stem}.failed.ipynb"
            print(f"failed: {result.failure}; see {trace}", file=sys.stderr)
    return 1 if any(result.failure for result in results) else 0


if __name__ == "__main__":
    end_cleanly_on_signals()
    sys.exit(main())
