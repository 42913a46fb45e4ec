"""Lesson 6 is its entries: each runs by itself, and is found by its message, or by a word."""

import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

import helpers
from helpers.limits import entries
from helpers.limits.lookup import match
from tests.support.lesson_06 import NAMES, found, run, told


@pytest.mark.parametrize("name", entries())
def test_an_entry_is_found_by_each_thing_that_it_shows(name):
    for seen in entries()[name].seen:
        assert name in found(seen)
        if not seen.startswith(("wrong", "slow")):
            fragments = seen.partition(": ...")[2].replace("...", " 0x7f03 ")
            assert name in found(f"RuntimeError: before {fragments}\n and after")


FIRST = {
    "sparse-gradients": ["nn.Embedding(sparse=True) with vmap"],
    "random-draws": ['`randomness="different"` to train'],
    "jacobian-backends": ["which Jacobian backend"],
    "samples-that-meet-in-the-loss": ["gradients of a contrastive loss are 0"],
    "layernorm-third-order": ["hessian layernorm", "PINN layer norm gradient"],
    "weight-norm-twice": ["use forward AD with _weight_norm_interface that does not support it"],
    "frozen-parameters": ["only Tensors of floating point dtype can", "__set__ of a parameter"],
    "loss-is-no-scalar": ["function f should be a tuple: (output, aux) if has_aux is True"],
    "distributed-model": ["Linear has no attribute 'module'"],
    "no-gradient": ["element 0 of tensors does not require grad", "__get__ of a parameter, which"],
    "recurrent-rule": ["cudnn RNN backward can only be called in training mode"],
    "two-devices": ["Expected all tensors to be on the same device, but found at least two"],
    None: ["zebras crossing streets", "KeyError: 'weight'", "ValueError: optimizer got an empty"],
}


@pytest.mark.parametrize("name", FIRST)
def test_words_and_messages_lead_to_an_entry_or_to_none(name):
    assert {next(iter(found(words)), None) for words in FIRST[name]} == {name}


def test_of_several_with_one_message_the_traceback_decides():
    said = "The size of tensor a (8) must match the size of tensor b (9) at non-singleton dimension"
    assert match(said) is None
    assert match(said, "model.py\nforward\nreturn self.prelu(x)").name == "prelu-in-jacobians"
    said = "You tried to vmap over ApplyTemplate, but it does not have vmap support."
    assert found(said)[:2] == ["compiled-custom-backward", "autograd-function"]


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
def test_an_entry_runs_below_the_top_alone_and_what_it_raises_leads_to_it(name):
    if name == "compiled-forward-mode" and not torch.__version__.startswith("2.13."):
        pytest.skip("it raises or runs, by what was compiled before")
    (_, raised), entry = run(name), entries()[name]
    if torch.__version__.startswith("2.13."):  # others word some messages otherwise
        loud = not entry.seen[0].startswith(("wrong", "slow", "FutureWarning", "UserWarning"))
        assert raised or not loud
        for each in raised:  # many that are mended fall back, too
            others = {"operator-fallback"} if isinstance(each, Warning) else set()
            assert found("".join(traceback.format_exception(each)))[0] in {name, *others}


def test_find_and_the_lesson_say_the_same():
    assert [*told()] == NAMES
    for name, entry in told().items():
        assert entries()[name] == entry, "helpers/limits/entries.toml, or the text of the lesson"
