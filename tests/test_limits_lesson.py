"""Lesson 6 is its entries: each runs by itself, below its message, and is found by it."""

import re

import pytest
import torch

from helpers.limits import entries, find
from helpers.tooling.lesson import files
from tests.support.lesson_06 import LESSON, NAMES, SECTIONS, as_seen, run, told

CELLS = files.read(LESSON).cells


def found(message):
    return re.findall(r"^\| \[([a-z0-9-]+)\]", find(message), re.MULTILINE)


@as_seen
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


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_has_what_a_reader_looks_for(name):
    entry = entries()[name]
    assert re.fullmatch("[a-z0-9-]+", name)
    assert all((entry.seen, entry.cause, entry.fix))
    assert 2 <= len(SECTIONS[name]) <= 8


def test_find_and_the_lesson_say_the_same():
    assert [*told()] == NAMES
    for name, entry in told().items():
        assert entries()[name] == entry, "helpers/limits/entries.toml, or the text of the lesson"


def test_every_small_heading_of_one_name_is_an_entry():
    sources = [cell.source for cell in CELLS if cell.cell_type == "markdown"]
    assert re.findall(r"(?m)^### (\S+)$", "\n".join(sources)) == NAMES


def test_the_version_is_told_once():
    sources = "\n".join(cell.source for cell in CELLS)
    assert sources.count("torch 2.11, 2.13 and 2.15") == 1
    assert sources.count('seen_on="2.13"') == 1


def test_nothing_had_changed_when_the_lesson_was_saved():
    assert not any("changed: " in str(cell.get("outputs", "")) for cell in CELLS)
