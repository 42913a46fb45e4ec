"""The entries as `limits` reads them: found by message or word, and by a copy of the helpers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import helpers
from helpers.limits import entries, find
from helpers.limits.diagnosis.signs import FALLBACKS, SIGNS
from helpers.limits.lookup import Entry


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
    assert done.stdout.startswith("1: raises (random-draws)\n"), done.stderr
    assert entries()["random-draws"].fix in done.stdout


def test_diagnose_knows_errors_of_entries_that_exist():
    assert {sign.entry for sign in SIGNS} | {*FALLBACKS.values()} <= set(entries())
    for sign in SIGNS:
        shown = entries()[sign.entry].seen
        assert any(sign.error.__name__ in each for each in shown), sign
