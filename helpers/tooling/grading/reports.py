"""What comes of grading: grades.csv, a page for each student, and index.html for the teacher."""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from helpers.tooling.grading.submissions import Exercise, Submission
from helpers.tooling.lesson import drafts

CORRECT = "correct"
Outcome = Mapping[str, Any]


def mark(outcome: Outcome) -> int:
    """Return 1 for an answer that the check and the hidden test call correct, else 0."""
    return int(outcome["verdict"] == CORRECT and outcome.get("hidden", "") in ("", CORRECT))


def kind(outcome: Outcome) -> str:
    """Shorten a verdict to what it has in common with others: `wrong shape`."""
    if outcome["verdict"] == CORRECT and not mark(outcome):
        return f"hidden test: {outcome['hidden'].partition(':')[0]}"
    return re.split(r"[:(]", outcome["verdict"])[0].strip()


def write(
    folder: Path,
    title: str,
    about: str,
    exercises: Sequence[Exercise],
    graded: Sequence[tuple[Submission, Mapping[int, Outcome]]],
) -> None:
    """Write the table and the pages of a class into a folder, in place of those of before.

    Args:
        folder: Where to.
        title: Of the lesson.
        about: What was graded, and by what besides the checks.
        exercises: The exercises of the lesson.
        graded: Each submission, and the outcomes by the number of the exercise.
    """
    pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    pages.globals |= {
        "mark": mark,
        "kind": kind,
        "title": title,
        "about": about,
        "exercises": exercises,
    }
    pages.filters["mark"] = mark
    rows = [
        {
            "submission": one,
            "outcomes": outcomes,
            "marks": sum(map(mark, outcomes.values())),
            "page": f"{number:03}-{re.sub('[^A-Za-z0-9]+', '-', one.student)[:40]}.html",
        }
        for number, (one, outcomes) in enumerate(graded, 1)
    ]
    rows.sort(key=lambda row: (row["submission"].student.lower(), row["submission"].file))
    with drafts.replaced(folder / "students") as draft:
        draft.mkdir()
        for row in rows:
            text = pages.get_template("student.html").render(row)
            (draft / row["page"]).write_text(text, "utf-8", "backslashreplace")
    counts = {
        each.number: Counter(kind(row["outcomes"][each.number]) for row in rows if row["outcomes"])
        for each in exercises
    }
    text = pages.get_template("class.html").render(rows=rows, counts=counts)
    (folder / "index.html").write_text(text, "utf-8", "backslashreplace")
    with (folder / "grades.csv").open("w", -1, "utf-8", "backslashreplace", "") as file:
        table = csv.writer(file)
        numbers = [each.number for each in exercises]
        head = [f"{what}exercise {n}" for what in ("", "hidden test of ") for n in numbers]
        table.writerow(["student", "file", "marks", "of", *head, "notes"])
        for row in rows:
            one, outcomes = row["submission"], row["outcomes"]
            said = [
                outcomes[n].get(what, "") if outcomes else ""
                for what in ("verdict", "hidden")
                for n in numbers
            ]
            notes = "; ".join(filter(None, [one.problem, *one.notes]))
            cells = [one.student, one.file, row["marks"], len(exercises), *said, notes]
            table.writerow([_text(each) for each in cells])


def _text(cell: Any) -> Any:
    """Keep a spreadsheet from taking a student's text for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in "=+-@\t\r" and cell else cell
