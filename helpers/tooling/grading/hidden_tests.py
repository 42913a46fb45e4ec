"""Hidden tests of a lesson, as a file has them: see `helpers.tooling.grade`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from helpers.tooling.grading.submissions import Exercise

HEADING = re.compile(r"(?m)^# %% exercise-(\d+)(?:, without: (.+))?$")


class Test(NamedTuple):
    """A hidden test of an exercise."""

    source: str = ""
    without: tuple[str, ...] = ()
    """Names that no answer may use."""


def read(folder: Path | None, lesson: Path, exercises: Sequence[Exercise]) -> dict[int, Test]:
    """Read the hidden tests of a lesson, by the number of the exercise.

    Raises:
        ValueError: There is no file of them, or one is of no exercise.
    """
    if folder is None:
        return {}
    file = folder / f"{lesson.stem}.py"
    if not file.is_file():
        raise ValueError(f"there are no hidden tests {file}")
    parts = HEADING.split(file.read_text("utf-8"))[1:]
    found = {
        int(number): Test(source, tuple((names or "").split()))
        for number, names, source in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }
    if not found:
        raise ValueError(f"{file} has no test: one begins with a line `# %% exercise-1`")
    strange = sorted(found.keys() - {each.number for each in exercises})
    if strange:
        raise ValueError(f"{file} has tests of exercises {strange}, which are not there")
    return found
