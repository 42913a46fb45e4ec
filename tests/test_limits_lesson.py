"""The lesson shows every entry under its name, its message and its tag, and no other."""

import contextlib
import re
import sys
import warnings
from pathlib import Path

import nbformat
import pytest
import torch

from helpers.limits import ENTRIES
from helpers.limits.entry import SEEN_ON, one_line
from helpers.limits.gallery import seen

LESSON = Path(__file__).parents[1] / "notebooks" / "06_limits.ipynb"
CELLS = nbformat.read(LESSON, 4).cells
HEADINGS = [
    cell for cell in CELLS if cell.cell_type == "markdown" and cell.id.startswith("about-")
][1:]  # the first is about the parameters


def shown(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("data", {}).get("text/markdown", "") for output in cell.outputs)


BLOCKS = {
    cell.id: re.findall(r"```python\n(.*?)```", shown(cell), re.DOTALL)
    for cell in CELLS
    if cell.cell_type == "code" and (cell.id in ENTRIES or cell.id == "bare-source")
}


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
    text = LESSON.read_text()
    assert text.count(f"torch {SEEN_ON}") == 1
    assert len(text) < 500_000, "quick to open"


def test_the_index_names_every_entry_as_text():
    for part in ("loud", "silent", "slow"):
        (text,) = (shown(cell) for cell in CELLS if cell.id == f"index-{part}")
        named = re.findall(r"^\| \[([a-z0-9-]+)\]", text, re.MULTILINE)
        assert named == [name for name, entry in ENTRIES.items() if entry.part == part]


@pytest.fixture(scope="module")
def lesson():
    """Run the cells before the first entry, and return what they define."""
    first = next(n for n, cell in enumerate(CELLS) if cell.id in ENTRIES)
    names: dict[str, object] = {"__name__": "__main__"}
    path, generator = [*sys.path], torch.get_rng_state()
    for cell in CELLS[:first]:
        if cell.cell_type == "code":
            exec(compile(cell.source, cell.id, "exec"), names)
    yield names
    sys.path[:] = path
    torch.set_rng_state(generator)


def run_as_shown(block: str, lesson: dict[str, object]) -> set[str]:
    """Run a block in a copy of the lesson's names, and return those that it took for itself."""
    names = dict(lesson)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(block, "a block", "exec"), names)
    return {name for name in lesson if names[name] is not lesson[name]}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_runs_where_it_is_copied_to(name, lesson):
    assert set(BLOCKS) == {*ENTRIES, "bare-source"}
    blocks = BLOCKS[name]
    assert len(blocks) == (2 if name in ENTRIES else 1)
    entry = ENTRIES.get(name)
    for number, block in enumerate(blocks):
        raises = entry is not None and entry.part == "loud" and number == 0
        expected = pytest.raises(entry.error) if raises else contextlib.nullcontext()
        with expected as caught:
            taken = run_as_shown(block, lesson)
            # The source of what the lesson imports defines just that.
            assert taken <= (
                set() if entry else {"Case", "Classifier", "bare_gradients", "sequences", "tokens"}
            ), taken
        if raises:
            assert entry.symptom in one_line(caught.value)
