"""Opacus' own tests of per-sample gradients, with those of the helpers in place of its own."""

import pkgutil
import unittest
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn

from helpers import gradients
from tests.support.zoo import Apply

theirs = pytest.importorskip("opacus.utils.per_sample_gradients_utils")
hypothesis = pytest.importorskip("hypothesis")
# Of an absolute value at an output of almost 0, rounding decides the gradient: the same cases
# each time, or one in some thousands differs.
hypothesis.settings.register_profile("the same cases", derandomize=True, database=None)
hypothesis.settings.load_profile("the same cases")
FOLDER = import_module("opacus.tests.grad_samples")
NAMES = [each.name for each in pkgutil.iter_modules(FOLDER.__path__) if each.name != "common"]


def ours(x, module, batch_first=True, loss_reduction="mean", grad_sample_mode=""):
    """Compute in all ways, and return the gradients in Opacus' names and order."""
    model = theirs.clone_module(module)
    criterion = nn.L1Loss(reduction=loss_reduction)

    def loss_fn(out, _):
        if isinstance(out, Tensor):
            return criterion(out, torch.zeros_like(out))
        return theirs._compute_loss_packedsequences(criterion, out)

    if isinstance(x, Tensor) and not batch_first:
        model = Apply(lambda m, x: m.module(x.transpose(0, 1)), module=model)
        x = x.transpose(0, 1)
    rows = gradients.loop_gradients(model, loss_fn, x)
    out = {name: torch.full_like(each, torch.nan) for name, each in rows.items()}
    for got in (
        gradients.func_gradients(model, loss_fn, x),
        gradients.func_gradients(model, loss_fn, x, chunk_size=2),
        gradients.func_gradients(model, loss_fn, x, out=out),
    ):
        torch.testing.assert_close(got, rows, rtol=1e-4, atol=1e-5)
    # Opacus has the samples of packed sequences by their lengths.
    order = getattr(x, "sorted_indices", None)
    found = {}
    for name, each in rows.items():
        found[name.removeprefix("module.")] = each if order is None else each[order]
    return found


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_theirs_hold_for_ours(name, monkeypatch):
    for place in (theirs, import_module(f"{FOLDER.__name__}.common")):
        monkeypatch.setattr(place, "compute_opacus_grad_sample", ours)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromName(f"{FOLDER.__name__}.{name}").run(result)
    assert result.testsRun
    for _, said in result.failures + result.errors:
        pytest.fail(said)
