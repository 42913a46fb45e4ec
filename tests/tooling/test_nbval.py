"""The comparison of saved outputs: what was altered by hand is caught, a dead kernel soon."""

import re

import pytest

from helpers.tooling.lesson import files, form, parameters
from tests.support import answers
from tests.tooling.samples import (
    ANSWER,
    CHECK,
    LESSONS,
    ROOT,
    SIZES,
    cell,
    code,
    lesson,
    run_pytest,
    save,
)


def run(desk, *options):
    """Run pytest over the lessons of a desk.

    Returns the outcome of each cell, under `"01_good 3"`, where 3 is nbval's number, from 0; and of
    what else was found out, under its name, such as `"01_good isolation"`. And all that was shown.
    """
    shown = run_pytest(desk, "-rA", *options, "notebooks")
    line = r"^(PASSED|FAILED|ERROR) \S*?(\w+)\.ipynb::(?:Cell )?(.*?)(?: - .*)?$"
    found = re.findall(line, shown.stdout, re.M)
    assert found, shown.stdout + shown.stderr
    return {f"{stem} {name}": outcome for outcome, stem, name in found}, shown.stdout


def failed(outcomes):
    return {name for name, outcome in outcomes.items() if outcome != "PASSED"}


def printing(shape="(64, 32, 1, 3, 3)\n", verdict="equal: True\n"):
    return lesson(
        code("shape", "print((batch_size, 32, 1, 3, 3))", printed=shape),
        code("verdict", 'print("equal:", 1 + 1 == 2)', printed=verdict),
        code("clock", "import time", "nbval-ignore-output", printed="3.1 ms\n"),
    )


def test_damaged_outputs_and_dead_kernels_fail(desk):
    warning = printing()
    cell(warning, "verdict").source += '\nimport warnings; warnings.warn("careful")'
    dying = "import os, time\ntime.sleep(0.5)\nos._exit(1)"
    save(printing(), "01_good")
    save(printing(shape="(65, 32, 1, 3, 3)\n"), "02_shape")
    save(printing(verdict="equal: False\n"), "03_verdict")
    save(warning, "04_warning")
    save(lesson(code("die", dying), code("after", "1")), "05_dies")

    found, shown = run(desk)

    assert len(found) == 4 * 4 + 3
    assert failed(found) == {"02_shape 1", "03_verdict 2", "04_warning 2", "05_dies 1", "05_dies 2"}
    for sentence in ("cell 3 (shape)", "cell 4 (verdict)", "UserWarning: careful", "kernel died"):
        assert sentence in shown


def test_lax_compares_what_is_tagged(desk):
    notebook = lesson(
        code("plain", "print(42)", printed="43\n"),
        code("tagged", "print(42)", "nbval-check-output", printed="43\n"),
    )
    save(notebook, "01_a")
    outcomes, _ = run(desk, "--nbval-lax")
    assert outcomes == {"01_a 0": "PASSED", "01_a 1": "PASSED", "01_a 2": "FAILED"}


RIGHT = "def answer(x):\n    return x + x"
WRONG = "def answer(x):\n    return x"


def block(solution, verdict, source):
    return f"# %% {solution}: {verdict}\n{source}\n\n\n"


def with_exercise():
    """Make a lesson of one exercise, of which all is saved that its check prints."""
    saved = "doubled: right shape and values, (3,)\nExercise 1: correct\n"
    return lesson(
        code("set-up", form.SETUP),
        code("answer", ANSWER, "solution"),
        code("check", CHECK, "nbval-check-output", printed=saved),
    )


def test_one_run_judges_answers_and_looks_at_what_the_lesson_did(desk):
    good, importing, writing = with_exercise(), with_exercise(), with_exercise()
    cell(good, "set-up").source += "\nassert hidden == 3"
    cell(importing, "set-up").source += "\n_ = __import__('helpers.tooling.lesson.files')"
    cell(writing, "set-up").source += "\nPath('left').touch()"
    save(good, "01_good")
    save(importing, "02_bad")
    save(writing, "03_bad")
    (desk / "sizes.toml").write_text("[01_good]\nhidden = 3\n")
    folder = desk / "exercises"
    folder.mkdir()
    wrong = block("answer", "right shape, wrong values", WRONG)
    right = block("answer", "correct", RIGHT)
    (folder / "01_good.py").write_text(wrong + right + right)
    (folder / "02_bad.py").write_text(
        block("answer", "right shape, wrong values", RIGHT)
        + block("answer", "correct", WRONG)
        + block("answer", "wrong shape", f"torch.ones = lambda n: torch.zeros(n + 1)\n{WRONG}")
        + block("other", "correct", RIGHT)
    )

    found, shown = run(desk, "--try-answers", ".")

    lesson_1 = [name for name in found if name.startswith("01_good")]
    assert len(lesson_1) == len(files.code_cells(good)) + 2 + 5  # findings, and answers
    assert failed(found) == {
        *("02_bad isolation", "02_bad answers", "02_bad answer again"),
        *(f"02_bad answer answer {number}" for number in (1, 2, 3)),
        *("03_bad isolation", "03_bad answers"),
    }
    for sentence in (
        "it imported what no copy of it carries: ",
        "it left behind: left",
        "02_bad.py: answer has not two right answers; the lesson has no solution other",
        "03_bad.py: answer has no wrong answer; answer has not two right answers",
        "answer answer 1: expected a verdict that begins `right shape, wrong values`",
        "answer answer 2: expected a verdict that begins `correct`",
        "answer again: expected what is saved:",
    ):
        assert sentence in shown


@pytest.mark.parametrize(
    "said",
    ["Exercise 1: correct\nExercise 1: wrong shape\n", "said: Exercise 1: wrong shape\n", ""],
)
def test_another_verdict_is_complained_of(said):
    answer = answers.Answer("solution-1 answer 1", RIGHT, code("check", CHECK), "wrong shape")
    assert answers.complaint(answer, said)


def test_small_sizes_are_of_parameters_that_there_are():
    declared = {path.stem: parameters.declared(path) for path in LESSONS}
    for stem, values in SIZES.items():
        assert values.keys() <= declared[stem].keys()
        assert all(value < declared[stem][name][0] for name, value in values.items())


@pytest.mark.whole
@pytest.mark.parametrize("stem", SIZES)
def test_lesson_compares_at_its_full_sizes(stem):
    done = run_pytest(ROOT, "-q", f"notebooks/{stem}.ipynb")
    assert done.returncode == 0, done.stdout
