"""Hold the contract against models of well-known libraries: `make wild`.

Prints a table and writes it to build/wild/report.md. Each library's models run in a process of
their own, which is replaced when a model takes too long or ends it.
"""

import argparse
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from helpers.tooling.wild import contract, libraries

REPORT = Path("build/wild/report.md")
SECONDS = 240
"""How long a model may take."""
SAMPLES = 3
LOST = "lost"
"""The verdict on a model that took too long, or ended its process."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, or 1 when a model broke the contract, got lost, or did not run: the
        list holds none that does not.
    """
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.wild", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of titles, such as timm or swin")
    parser.add_argument("--worker", nargs="+", metavar="TITLE", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    listed = libraries.read()
    if asked.worker:
        work([each for each in listed if each.title in asked.worker])
        return 0
    if asked.only:
        listed = [each for each in listed if any(part in each.title for part in asked.only)]
        if not listed:
            parser.error(f"no title holds {' or '.join(asked.only)}: {libraries.LIST} has them all")
    results = []
    for result in run_all(listed):
        results.append(result)
        print(line(result), flush=True)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(report(results))
    print(f"\n{summary(results)}\nThe report is in {REPORT}.")
    return int(any(is_bad(result) for result in results))


def work(listed: Sequence[libraries.Listed]) -> None:
    """Check models one after the other, and write a line of JSON for each."""
    torch.set_num_threads(1)
    for each in listed:
        try:
            result = contract.check(each.title, *libraries.make(each, SAMPLES))
        except Exception as error:  # a library that is not as the list says
            result = contract.Result(each.title, says=[f"{type(error).__name__}: {error}"])
        print(json.dumps(result.as_dict()), flush=True)


def run_all(
    listed: Sequence[libraries.Listed], command: Sequence[str] = (), seconds: float = SECONDS
) -> Iterator[contract.Result]:
    """Check models, those of one library in one process as long as it lives.

    Args:
        listed: The models.
        command: What starts a worker, given titles; none means this module.
        seconds: How long a model may take.
    """
    command = command or (sys.executable, "-m", "helpers.tooling.wild", "--worker")
    left = list(listed)
    while left:
        here = [each for each in left if each.library == left[0].library]
        with subprocess.Popen(
            [*command, *(each.title for each in here)], stdout=subprocess.PIPE, text=True
        ) as worker:
            lines: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_pass_on, args=(worker, lines), daemon=True).start()
            for each in here:
                left.remove(each)
                try:
                    said = lines.get(timeout=seconds)
                    why = "" if said else "ended its process"
                except queue.Empty:
                    why = f"took longer than {seconds} s"
                if why:
                    yield contract.Result(each.title, {"all": LOST}, [why])
                    break
                yield contract.Result(**json.loads(said))
            worker.kill()


def _pass_on(worker: subprocess.Popen[str], lines: "queue.Queue[str]") -> None:
    for each in worker.stdout:
        if each.startswith("{"):
            lines.put(each)
    lines.put("")


def is_bad(result: contract.Result) -> bool:
    """Say whether a model broke the contract, got lost, or did not run."""
    return not result.verdicts or any(
        verdict in (*contract.BAD, LOST) for verdict in result.verdicts.values()
    )


def line(result: contract.Result) -> str:
    """Write a model's verdicts in one line."""
    if not result.verdicts:
        return f"{result.title}: not run ({result.says[0][:100]})"
    kinds = dict.fromkeys(result.verdicts.values())
    parts = {
        kind: [way for way, verdict in result.verdicts.items() if verdict == kind] for kind in kinds
    }
    if len(parts) == 1:
        return f"{result.title}: {next(iter(parts))}"
    return f"{result.title}: " + "; ".join(f"{k} ({', '.join(ways)})" for k, ways in parts.items())


def summary(results: Sequence[contract.Result]) -> str:
    """Count models by what became of them."""
    counts: dict[str, int] = {}
    for result in results:
        verdicts = set(result.verdicts.values())
        worst = (LOST, contract.DAMAGED, contract.WRONG, contract.RAISED, contract.REFUSED)
        kind = next((each for each in (*worst, contract.HELD) if each in verdicts), "not run")
        counts[kind] = counts.get(kind, 0) + 1
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return f"{len(results)} models: {said}."


def report(results: Sequence[contract.Result]) -> str:
    """Write the table, and below it what was said of each model."""
    ways = list(dict.fromkeys(way for result in results for way in result.verdicts))
    rows = ["| model | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
    rows += [
        f"| {result.title} | " + " | ".join(result.verdicts.get(way, "") for way in ways) + " |"
        for result in results
    ]
    notes = [
        f"- {result.title}: {text.replace('|', '/')}" for result in results for text in result.says
    ]
    head = f"# Models of libraries, torch {torch.__version__}\n\n{summary(results)}\n"
    return "\n".join([head, *rows, "", *notes, ""])


if __name__ == "__main__":
    sys.exit(main())
