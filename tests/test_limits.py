"""The entries as `limits` reads them: found by message or word, and by a copy of the helpers."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import helpers
from helpers.limits import entries, find
from helpers.limits.lookup import match
from tests.support.lesson_06 import found


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
