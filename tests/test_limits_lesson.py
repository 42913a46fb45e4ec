"""The lesson shows every entry under its name, its message and its tag, and no other."""

from pathlib import Path

import nbformat
import pytest

from helpers.limits import ENTRIES
from helpers.limits.gallery import seen

CELLS = nbformat.read(Path(__file__).parents[1] / "notebooks" / "06_limits.ipynb", 4).cells
HEADINGS = [
    cell for cell in CELLS if cell.cell_type == "markdown" and cell.id.startswith("about-")
][1:]  # the first is about the parameters


def test_the_headings_are_the_entries_in_order():
    assert [cell.source.splitlines()[0] for cell in HEADINGS] == [f"### {name}" for name in ENTRIES]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_found_by_its_message_and_runs_below_it(name):
    place = next(n for n, cell in enumerate(CELLS) if cell.source.startswith(f"### {name}\n"))
    heading, code = CELLS[place : place + 2]
    assert seen(ENTRIES[name]) in heading.source, "the message in the heading is not the entry's"
    assert code.source == f'limits.show("{name}", *few)'
    tags = code.metadata.get("tags", [])
    assert ("nbval-check-output" in tags) == ENTRIES[name].lasting


def test_nothing_had_changed_when_the_lesson_was_saved():
    outputs = [str(cell.get("outputs", "")) for cell in CELLS]
    assert not any("**Changed.**" in output for output in outputs)
    assert sum("every entry holds" in output for output in outputs) == 1
