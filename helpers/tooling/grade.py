"""Grade what a class handed in for one lesson: its own checks, and hidden tests if there are any.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.grade 02 handed-in` writes
build/grades/02_legacy_functorch/: grades.csv, index.html for the teacher, and a page a student.
The folder holds for each student a notebook, or a folder with one. What is judged is put down at
once in record.jsonl, so that the same command goes on where it was stopped.

With `--hidden FOLDER`, an exercise counts as correct if the test in FOLDER/02_legacy_functorch.py
says so, too. That file holds cells of the form of the lesson's checks, each after a line
`# %% exercise-1` or `# %% exercise-1, without: func_gradients jacrev`, with names that no answer to
it may use.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from helpers.tooling import student
from helpers.tooling.grading import hidden_tests, reports, submissions, syntax
from helpers.tooling.grading.session import REFERENCE, Session
from helpers.tooling.grading.submissions import Exercise
from helpers.tooling.lesson import files, imports
from helpers.tooling.lesson.execution import end_cleanly_on_signals

BUILD = Path("build/grades")
SECONDS, TIMES = 20, 10
"""An answer has this many seconds, and besides this many times those of the lesson's solution."""
NO_ANSWER = {"verdict": "no answer"}


class Record:
    """Outcomes that are known, by what was judged; each is put down as soon as it is there."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, dict[str, Any]] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        for line in file.read_text("utf-8").splitlines():
            try:
                self._known.update(json.loads(line))
            except ValueError:  # the last line of a run that was killed
                continue

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._known[key]

    def add(self, key: str, outcome: dict[str, Any]) -> None:
        """Put an outcome down."""
        self._known[key] = outcome
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps({key: outcome})}")


def grade(lesson: Path, folder: Path, hidden_folder: Path | None = None) -> Path:
    """Grade what lies in a folder; return where the grades are.

    Raises:
        ValueError: There is nothing to grade, or the lesson or a hidden test fails by itself.
    """
    notebook = files.read(lesson)
    asked = submissions.exercises(notebook)
    if not asked:
        raise ValueError(f"{lesson.name} has no exercises")
    hidden = hidden_tests.read(hidden_folder, lesson, asked)
    handed_in = submissions.read(folder, lesson, student.editions(lesson))
    out = BUILD / lesson.stem
    record = Record(out / "record.jsonl")
    own = (imports.ROOT / "helpers").rglob("*.*")
    same = [lesson, *sorted(each for each in own if each.suffix in (".py", ".toml"))]
    code = hashlib.sha256(b"".join(each.read_bytes() for each in same)).hexdigest()

    def key(number: int, source: str) -> str:
        what = json.dumps([code, hidden.get(number), number, source])
        return hashlib.sha256(what.encode()).hexdigest()[:32]

    wanted = {
        each.number: {
            key(each.number, one.answers[each.number].source): one.answers[each.number].source
            for one in handed_in
            if each.number in one.answers
        }
        for each in asked
    }
    missing = {n: {k: s for k, s in of.items() if k not in record} for n, of in wanted.items()}
    if any(missing.values()):
        secret = [folder, imports.ROOT / "tests", BUILD, *filter(None, [hidden_folder])]
        session = Session(lesson.parent.resolve(), [each.resolve() for each in secret])
        count = sum(map(len, missing.values()))
        try:
            with tqdm(total=count, unit=" answers", desc=f"the lesson {lesson.stem} runs") as bar:
                for known, outcome in _outcomes(session, notebook, asked, missing, hidden, bar):
                    record.add(known, outcome)
        finally:
            session.close()
    graded = []
    for one in handed_in:
        outcomes = {} if one.problem else {each.number: NO_ANSWER for each in asked}
        for number, answer in one.answers.items():
            outcome = dict(record[key(number, answer.source)])
            used = syntax.words(answer.source) & {*hidden.get(number, hidden_tests.Test()).without}
            if used:
                outcome["hidden"] = f"not so yet: it does without {', '.join(sorted(used))}"
            outcomes[number] = outcome
        graded.append((one, outcomes))
    title = notebook.cells[0].source.partition("\n")[0].lstrip("# ")
    tests = f"hidden tests of exercises {sorted(hidden)}" if hidden else "no hidden tests"
    reports.write(out, title, f"{folder}, {tests}", asked, graded)
    for one in handed_in:
        if one.problem or one.notes:
            print(f"{one.file}: {'; '.join(filter(None, [one.problem, *one.notes]))}")
    marks = sum(reports.mark(each) for _, outcomes in graded for each in outcomes.values())
    of = f"{len(handed_in)} submissions, {marks} of {len(handed_in) * len(asked)} answers correct"
    print(f"{title}: {of}, {tests}; see {out / 'index.html'} and {out / 'grades.csv'}")
    return out


def _outcomes(
    session: Session,
    notebook: Any,
    asked: Sequence[Exercise],
    missing: Mapping[int, Mapping[str, str]],
    hidden: Mapping[int, hidden_tests.Test],
    bar: tqdm,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the lesson, and have answers judged where the solution would come."""
    left = {each.solution.id: each for each in asked}
    for cell in files.code_cells(notebook):
        exercise = left.pop(cell.id, None)
        answers = missing[exercise.number] if exercise else {}
        if answers:
            bar.set_description(f"exercise {exercise.number}")
            test = hidden.get(exercise.number, hidden_tests.Test())
            reference = {REFERENCE: cell.source}
            ((_, own),) = session.judge(exercise, reference, test.source, 600)
            if not reports.mark(own):
                said = own.get("hidden") or ("no verdict" if test.source else "none")
                raise ValueError(
                    f"the lesson's own solution to exercise {exercise.number} is not correct here: "
                    f"{own['verdict']}; hidden test: {said}"
                )
            seconds = SECONDS + TIMES * own["seconds"]
            for outcome in session.judge(exercise, answers, test.source, seconds):
                bar.update()
                yield outcome
        if not (left or exercise):
            return  # the last check
        session.run(cell.id, cell.source)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, or 2 when something asked for will not do."""
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.grade", description=__doc__)
    parser.add_argument("lesson", help="number or name")
    parser.add_argument("submissions", type=Path)
    parser.add_argument("--hidden", type=Path)
    asked = parser.parse_args(arguments)
    try:
        if not hasattr(__import__("os"), "fork"):
            raise ValueError("this system has no fork: on Windows, grade in WSL")
        (lesson,) = files.choose([asked.lesson])
        grade(lesson, asked.submissions, asked.hidden)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    end_cleanly_on_signals()
    sys.exit(main())
