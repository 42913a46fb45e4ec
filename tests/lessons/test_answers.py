"""What tries the answers has answers to try, and lessons that are shorter in tests hold in full."""

import pytest

from helpers.tooling.lesson import copies, files
from tests.lessons import answers
from tests.lessons.tried import SIZES
from tests.support.samples import LESSONS, ROOT, run_pytest


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_each_exercise_has_two_right_answers_and_a_wrong_one(path):
    right = {}
    wrong = {}
    for solution, _ in copies.exercises(files.read(path)):
        right[solution.id] = 0
        wrong[solution.id] = 0
    for name, verdict, _ in answers.read(path.stem):
        counts = right if verdict == "correct" else wrong
        counts[name] += 1  # a KeyError: the lesson has no such solution
    for name in right:
        assert right[name] >= 2, name
        assert wrong[name] >= 1, name


@pytest.mark.whole
@pytest.mark.parametrize("stem", SIZES)
def test_lesson_compares_at_its_full_sizes(stem):
    done = run_pytest(ROOT, "-q", f"notebooks/{stem}.ipynb")
    assert done.returncode == 0, done.stdout
