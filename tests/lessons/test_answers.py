"""What tries the answers has answers to try, and lessons that are shorter in tests hold in full."""

import pytest

from helpers.tooling.lesson import copies, files
from tests.lessons import answers
from tests.support.samples import LESSONS, ROOT, SIZES, run_pytest


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_each_exercise_has_two_right_answers_and_a_wrong_one(path):
    blocks = answers.read(ROOT / "tests" / "lessons" / "exercises" / f"{path.stem}.py")
    verdicts = {check.id: [] for check, _ in copies.exercises(files.read(path))}
    for solution, verdict, _ in blocks:
        verdicts[solution].append(verdict == "correct")
    assert all(sum(right) >= 2 and not all(right) for right in verdicts.values()), verdicts


@pytest.mark.whole
@pytest.mark.parametrize("stem", SIZES)
def test_lesson_compares_at_its_full_sizes(stem):
    done = run_pytest(ROOT, "-q", f"notebooks/{stem}.ipynb")
    assert done.returncode == 0, done.stdout
