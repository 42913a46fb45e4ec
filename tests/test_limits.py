"""The reference is its entries: each runs by itself, is found, and mends two situations."""

import shutil
import subprocess
import sys
import traceback
from importlib.util import find_spec
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
            # What the entry leaves out is an address or a number in a message.
            _, _, fragments = seen.partition(": ...")
            message = fragments.replace("...", " 0x7f03 ")
            assert name in found(f"RuntimeError: before {message}\n and after")


# Entries about a library, which need not be there.
INSTALLED = {"backpack-extension": "backpack"}
INSTALLED |= {name: "opacus" for name in NAMES if name.startswith("opacus")}

# What somebody looks for, and the entry that must come first.
FIRST = {
    "nn.Embedding(sparse=True) with vmap": "sparse-gradients",
    '`randomness="different"` to train': "random-draws",
    "which Jacobian backend": "jacobian-backends",
    "gradients of a contrastive loss are 0": "samples-that-meet-in-the-loss",
    "NaN Hessian": "special-points",
    "coinciding points": "special-points",
    "determinant wrong at the identity": "special-points",
    "NaN in every entry of the metagradient": "infinite-slope",
    "Adam epsilon inside the root": "infinite-slope",
    "hessian layernorm": "layernorm-third-order",
    "PINN layer norm gradient": "layernorm-third-order",
    "use forward AD with _weight_norm_interface that does not": "weight-norm-twice",
    "only Tensors of floating point dtype can": "frozen-parameters",
    "__set__ of a parameter": "frozen-parameters",
    "function f should be a tuple: (output, aux) if has_aux": "loss-is-no-scalar",
    "Linear has no attribute 'module'": "distributed-model",
    "element 0 of tensors does not require grad": "no-gradient",
    "__get__ of a parameter, which": "no-gradient",
    "cudnn RNN backward can only be called in training mode": "recurrent-rule",
    "Expected all tensors to be on the same device, but found": "two-devices",
    "batch norm MAML eval mode wrong gradients": "batchnorm-in-training",
    "BatchNorm in a meta learning inner loop": "batchnorm-in-training",
    "loss is nan when all labels are ignored": "sample-without-a-gradient",
    "class weight 0 nan": "sample-without-a-gradient",
    "fully masked row softmax nan": "sample-without-a-gradient",
    "hessian of relu network is zero": "piecewise-linear",
    "maxpool second derivative": "piecewise-linear",
    "GroupNorm on vectors gives zeros": "one-value-a-group",
    "more than 1 value per channel when training, got input size [1, 64]": "one-value-a-group",
    "more than 1 value per channel when training": "batchnorm-in-training",
    "the fallback path doesn't work on out= or view ops": "spectral-norm",
    "spectral norm ensemble": "spectral-norm",
    "stack expects each tensor to be equal": "unequal-sizes",
    "graphs of unequal size": "unequal-sizes",
    "cannot be recorded layer by layer, so its gradients were formed": "operator-fallback",
    "EWC diagonal fisher": "diagonal-of-the-fisher",
    "sign of influence score": "sign-of-an-influence",
    "noise for a sum and for a mean": "noise-for-a-mean",
    "dropout in trained ensemble": "random-draws",
    "zebras crossing streets": None,
    "KeyError: 'weight'": None,
    "ValueError: optimizer got an empty": None,
}


@pytest.mark.parametrize("words", FIRST)
def test_words_and_messages_lead_to_an_entry_or_to_none(words):
    names = found(words)
    if FIRST[words] is None:
        assert names == []
    else:
        assert names[0] == FIRST[words]


def test_of_several_with_one_message_the_traceback_decides():
    sizes = "The size of tensor a (8) must match the size of tensor b (9) at non-singleton"
    assert match(sizes) is None
    traceback_of_prelu = "model.py\nforward\nreturn self.prelu(x)"
    assert match(sizes, traceback_of_prelu).name == "prelu-in-jacobians"
    no_support = "You tried to vmap over ApplyTemplate, but it does not have vmap support."
    assert found(no_support)[:2] == ["compiled-custom-backward", "autograd-function"]


ALONE = """
import torch
from torch import nn
from helpers.limits import diagnose
model = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
print(diagnose(model, nn.MSELoss(), torch.rand(4, 3), torch.rand(4, 3)))
"""


def test_a_copy_of_the_helpers_knows_the_same(tmp_path):
    ignored = shutil.ignore_patterns("tooling", "__pycache__")  # what README leaves out
    shutil.copytree(Path(helpers.__file__).parent, tmp_path / "helpers", ignore=ignored)
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert done.stdout.startswith("1: raises RuntimeError"), done.stderr
    assert entries()["random-draws"].fix in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_runs_below_the_top_alone_and_what_it_raises_leads_to_it(name):
    if name == "compiled-forward-mode" and not torch.__version__.startswith("2.13."):
        pytest.skip("it raises or runs, by what was compiled before")
    _, raised, _ = run(name)
    if not torch.__version__.startswith("2.13."):
        return  # others word some messages otherwise
    silent = ("wrong", "slow", "FutureWarning", "UserWarning")
    assert raised or entries()[name].seen[0].startswith(silent)
    for error in raised:
        first = found("".join(traceback.format_exception(error)))[0]
        # Many models that are mended still fall back, which a warning says.
        falls_back = isinstance(error, Warning) and first == "operator-fallback"
        assert first == name or falls_back


@pytest.mark.parametrize("name", NAMES)
def test_the_fix_of_an_entry_mends_a_second_situation(name):
    if name in INSTALLED and find_spec(INSTALLED[name]) is None:
        pytest.skip(f"it needs {INSTALLED[name]}")
    _, raised, right = run(name, elsewhere=True)
    assert raised or not all(right), "nothing fails"
    # What comes last is what the entry advises.
    assert right, "nothing is compared"
    assert right[-1], "nothing is mended"


def test_find_and_the_reference_say_the_same():
    assert list(told()) == NAMES
    for name, entry in told().items():
        assert entries()[name] == entry, "helpers/limits/entries.toml, or the text of the page"
