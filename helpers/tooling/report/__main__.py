"""Set what runs left in `build/<device>/` side by side in `build/report.html`.

Run from the folder that holds `build/`: `python -m helpers.tooling.report`. A folder of another
machine, copied to `build/<device>@<name>/`, stands beside them.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from helpers.tooling import run
from helpers.tooling.lesson import drafts, files
from helpers.tooling.lesson.execution import end_cleanly_on_signals
from helpers.tooling.report import plot, tables, views

DEVICE = re.compile(r"(cpu|mps|cuda(-\d+)?)(@[\w.-]+)?")
"""Folders of devices; those of another machine are named after it, such as `cuda-0@cluster`."""
LESSON = re.compile(r"(\d\d_\w+?)(\.failed|\.running)?\.ipynb")


@dataclass
class Results:
    """What is in the folder of a device.

    Attributes:
        entries: What each executed lesson says, from `report_tables.read`.
        unusable: For other lessons of which there is a file, its state.
    """

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)

    def state(self, stem: str) -> str:
        """Say how far a lesson came; one that no run was asked for is left out."""
        if stem in self.entries:
            return "passed" if self.entries[stem]["failure"] is None else "failed"
        if stem in self.unusable:
            return self.unusable[stem]
        asked = any(stem in entry["asked"] for entry in self.entries.values())
        return "never ran" if asked else "left out"

    def summary(self, stems: Iterable[str]) -> str:
        """Count the lessons by their state: `3 passed, 1 failed`."""
        counts = Counter(map(self.state, stems))
        order = ("passed", "failed", "unfinished", "not usable", "never ran", "left out")
        return ", ".join(f"{counts[state]} {state}" for state in order if counts[state])


def collect(build: Path) -> tuple[dict[str, Results], list[str]]:
    """Read the executed lessons of all devices.

    Args:
        build: The folder with a folder for each device.

    Returns:
        Results by device, and a sentence for each file or table that could not be used.
    """
    devices, problems = {}, []
    for folder in sorted(path for path in build.glob("*/") if DEVICE.fullmatch(path.name)):
        results = Results()
        for path in sorted(folder.glob("*.ipynb")):
            named = LESSON.fullmatch(path.name)
            place = f"{folder.name}/{path.name}"
            if not named:
                problems.append(f"{place} was not used: it is not named like a lesson")
            elif named[2] == ".running":
                results.unusable[named[1]] = "unfinished"
                problems.append(
                    f"{place} was not used: it is running, or was stopped before it could be "
                    "finished"
                )
            else:
                try:
                    results.entries[named[1]], found = tables.read(path)
                    problems += [f"{place}: {problem}" for problem in found]
                except ValueError as error:
                    results.unusable[named[1]] = "not usable"
                    problems.append(f"{place} was not used: {error}")
        if results.entries or results.unusable:
            devices[folder.name] = results
    return devices, problems


def render(devices: dict[str, Results], problems: list[str]) -> str:
    """Write the page."""
    stems = {stem for each in devices.values() for stem in (*each.entries, *each.unusable)}
    stems |= {path.stem for path in files.FOLDER.glob("[0-9][0-9]_*.ipynb")}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    executed = {device: results.entries for device, results in devices.items()}
    environment.filters["plot"] = plot.draw
    return environment.get_template("report.html.j2").render(
        devices=devices,
        stems=sorted(stems),
        lessons=[views.lesson(stem, executed) for stem in sorted(stems)],
        facts=views.facts(executed),
        problems=problems,
    )


def main() -> int:
    """Run the command line.

    Returns:
        The exit status: 0, or 1 when there is nothing to report or the page cannot be written.
    """
    devices, problems = collect(run.BUILD)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not any(results.entries for results in devices.values()):
        print(f"{run.BUILD}/ holds no executed lesson: `make run` first", file=sys.stderr)
        return 1
    path = run.BUILD / "report.html"
    try:
        with drafts.replaced_file(path) as draft:
            draft.write_text(render(devices, problems), encoding="utf-8", errors="replace")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{path}: {', '.join(devices)}")
    return 0


if __name__ == "__main__":
    end_cleanly_on_signals()
    sys.exit(main())
