"""Lesson 6 is its entries: each runs by itself, and is found by its message, or by a word."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import helpers
from helpers.limits import entries, find
from helpers.limits.lookup import match
from helpers.tooling.lesson import files
from tests.support.lesson_06 import LESSON, NAMES, found, run, told


@pytest.mark.parametrize("name", entries())
def test_an_entry_is_found_by_each_thing_that_it_shows(name):
    for seen in entries()[name].seen:
        assert name in found(seen)
        if not seen.startswith(("wrong", "slow")):
            fragments = seen.partition(": ...")[2].replace("...", " 0x7f03 ")
            assert name in found(f"RuntimeError: before {fragments}\n and after")


def test_words_of_symptom_cause_and_way_out_lead_to_an_entry():
    assert "sparse-embedding" in found("Sparse=True")
    assert "random-draws" in found('`randomness="different"` to train')
    assert found("which Jacobian backend") == ["jacobian-backends"]
    assert "No entry" in find("no such words")


def test_of_several_with_one_message_the_traceback_decides():
    said = "vmap: attempting to use a Tensor in some data-dependent control flow"
    assert entries()["one-hot"].apart in find(said)
    assert match(said, "loss.py\nloss\nreturn z[label]").name == "index-by-target"
    assert match(said, "loss.py\nloss\nF.one_hot(y, 3)").name == "one-hot"
    assert match(said).name == "data-dependent-branch"
    assert match("Cannot access storage of TensorWrapper", "model.py") is None


ALONE = """
import torch
from torch import nn

from helpers.limits import diagnose

print(diagnose(nn.Sequential(nn.Linear(3, 3), nn.Dropout()), nn.MSELoss(), *torch.rand(2, 4, 3)))
"""


def test_a_copy_of_the_helpers_knows_the_same(tmp_path):
    ignored = shutil.ignore_patterns("tooling", "__pycache__")  # what README leaves out
    shutil.copytree(Path(helpers.__file__).parent, tmp_path / "helpers", ignore=ignored)
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("1: raises RuntimeError"), done.stderr
    assert entries()["random-draws"].fix in done.stdout


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
    assert not any("changed: " in str(c.get("outputs", "")) for c in files.read(LESSON).cells)
