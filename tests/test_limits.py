"""The entries as `limits` reads them: found by message or word, listed, and carried by a copy."""

import re

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from helpers.limits import entries, find, lookup
from helpers.limits.diagnosis.signs import FALLBACKS, SIGNS
from helpers.limits.lookup import Entry
from helpers.tooling.lesson import copies, imports


def found(message):
    return re.findall(r"^\| \[([a-z0-9-]+)\]", find(message), re.MULTILINE)


@pytest.mark.parametrize("name", entries())
def test_an_entry_is_found_by_each_thing_that_it_shows(name):
    for seen in entries()[name].seen:
        assert name in found(seen)
        if not seen.startswith(("wrong", "slow")):
            fragments = seen.partition(": ...")[2].replace("...", " 0x7f03 ")
            assert name in found(f"RuntimeError: before {fragments}\n and after")


def test_words_of_symptom_cause_and_way_out_lead_to_an_entry():
    assert "sparse-embedding" in found("Sparse=True")
    assert found("SPARSE_") == []
    assert "item" in found("makes one python number")
    assert "random-draws" in found('`randomness="different"` to train')
    assert found("which Jacobian backend") == ["jacobian-backends"]
    assert found("scale of gradients") == ["projection-too-large"]
    assert find("no such words") == "No entry of lesson 6 holds `no such words`."


def test_a_message_that_leads_to_several_tells_them_apart():
    said = find(
        "RuntimeError: vmap: attempting to use a Tensor in some data-dependent control flow"
    )
    assert entries()["one-hot"].apart in said


def test_a_fragment_with_a_gap_is_matched_in_order_of_its_parts():
    entry = Entry("name", ("RuntimeError: ...sizes of...do not...",), "", "", "")
    assert entry.matches("the sizes of a and b do not match")
    assert not entry.matches("the sizes of a and b match")
    assert not Entry("name", ("wrong: the sum",), "", "", "").matches("anything")


def modules_of(source):
    return imports.reached(new_notebook(cells=[new_code_cell(source)]))


def test_a_copy_without_the_lesson_knows_the_same(monkeypatch, tmp_path):
    known = dict(entries())
    ((path, text),) = copies.entries(modules_of("from helpers import limits")).items()
    assert imports.ROOT / path == lookup.COPY
    (tmp_path / path.name).write_text(text, "utf-8")
    monkeypatch.setattr(lookup, "LESSON", tmp_path / "06_limits.ipynb")
    monkeypatch.setattr(lookup, "COPY", tmp_path / path.name)
    assert entries.__wrapped__() == known
    assert copies.entries(modules_of("from helpers import norms")) == {}


def test_diagnose_knows_errors_of_entries_that_exist():
    assert {sign.entry for sign in SIGNS} | {*FALLBACKS.values()} <= set(entries())
    for sign in SIGNS:
        shown = entries()[sign.entry].seen
        assert any(sign.error.__name__ in each for each in shown), sign
