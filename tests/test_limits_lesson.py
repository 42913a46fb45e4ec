"""Lesson 6 is its entries: each runs by itself, below its message, and is found by it."""

import pytest
import torch

from helpers.limits import entries
from helpers.tooling.lesson import files
from tests.support.lesson_06 import LESSON, NAMES, found, run, told

CELLS = files.read(LESSON).cells


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_runs_below_the_top_alone_and_its_message_leads_to_it(name, capsys):
    if name == "compiled-forward-mode" and not torch.__version__.startswith("2.13."):
        pytest.skip("it raises or runs, by what was compiled before")
    done, entry = run(name), entries()[name]
    printed = capsys.readouterr().out
    assert "no warning: " not in printed
    messages = [f"{type(each).__name__}: {each}" for each in done.raised]
    if entry.part == "loud":
        assert messages
        assert any(entry.matches(" ".join(each.split())) for each in messages)
        assert name in found(messages[0])
    same = [each for each in entries().values() if any(map(each.matches, messages[:1]))]
    if len(same) > 1 and entry in same:
        assert all(each.apart for each in same), [each.name for each in same]


def test_find_and_the_lesson_say_the_same():
    assert [*told()] == NAMES
    for name, entry in told().items():
        assert entries()[name] == entry, "helpers/limits/entries.toml, or the text of the lesson"


def test_nothing_had_changed_when_the_lesson_was_saved():
    assert not any("changed: " in str(cell.get("outputs", "")) for cell in CELLS)
