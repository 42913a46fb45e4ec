"""One model of a library against the contract: ways equal to the truth, and the model unharmed."""

import copy
import traceback
import warnings

import torch
from torch import Tensor, nn

from tests.support.oracle import Truth, assert_equal
from tests.support.snapshot import Snapshot
from tests.support.ways import LOOP, WAYS
from tests.support.zoo import Case, squared

TOLERANCE = 1e-6  # all is float64, but some models compute a part in float32
TAKEN = LOOP, "func", "func, chunks", "func, out, chunks", "norms", "clipped sum", "func Jacobians"


def check(model: nn.Module, data: Tensor) -> tuple[list[str], list[str]]:
    """Take the ways of a model in evaluation mode, with outputs `(B, Y)`, all in float64.

    Returns where it broke the contract, in sentences that begin with the way, and what a way
    refused with a `ValueError` of ours, which the contract allows.
    """
    with torch.no_grad():
        targets = torch.randn_like(model(data[:1]).expand(len(data), -1))
    case = Case(model, data, targets, squared)
    truth = Truth(lambda: copy.deepcopy(case))
    broken, refused = [], []
    for name in TAKEN:
        way = WAYS[name]
        before = Snapshot(model)
        with warnings.catch_warnings(action="ignore"):
            try:
                assert_equal(way.compute(case, truth), way.expected(truth), TOLERANCE)
            except Exception as error:  # whatever it is, it is what the verdict is about
                verdict = refused if _is_refusal(error) else broken
                verdict.append(f"{name}: {type(error).__name__}: {error}")
        changes = before.changes()
        if changes:
            broken.append(f"{name}: changes {', '.join(changes[:3])}")
    return broken, refused


def _is_refusal(error: Exception) -> bool:
    """Return whether it is a `ValueError` that a line of helpers raised, and not one of torch."""
    frames = list(traceback.walk_tb(error.__traceback__))
    innermost, _ = frames[-1]
    module = innermost.f_globals.get("__name__", "")
    return isinstance(error, ValueError) and module.startswith("helpers.")
