"""The checks of a lesson as a file."""

import pytest

from tests.support import anatomy
from tests.tooling.samples import DOOR, LESSONS


@pytest.mark.parametrize("path", [DOOR, *LESSONS], ids=lambda path: path.stem)
def test_lesson_is_sound(path):
    assert anatomy.findings(path) == []
