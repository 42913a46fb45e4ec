"""One model of a library against the contract: ways equal to the truth, and the model unharmed."""

import copy
import traceback
import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tests.support.oracle import Truth, assert_equal
from tests.support.snapshot import Snapshot
from tests.support.ways import LOOP, WAYS
from tests.support.zoo import Case, squared

TOLERANCE = 1e-6  # all is float64, but some models compute a part in float32
TAKEN = LOOP, "func", "func, chunks", "func, out, chunks", "norms", "clipped sum", "func Jacobians"


class Verdict(NamedTuple):
    """What became of a model: sentences that begin with the way, such as `func: other names`."""

    broken: list[str]
    """Where it broke the contract: wrong numbers, a damaged model, an error."""
    refused: list[str]
    """What a way refused with a `ValueError` of ours, which the contract allows."""


def check(model: nn.Module, data: Tensor) -> Verdict:
    """Take the ways of a model in evaluation mode, with outputs `(B, Y)`, all in float64."""
    with torch.no_grad():
        targets = torch.randn_like(model(data[:1]).expand(len(data), -1))
    case = Case(model, data, targets, squared)
    truth = Truth(lambda: copy.deepcopy(case))
    verdict = Verdict([], [])
    for name in TAKEN:
        way, before = WAYS[name], Snapshot(model)
        with warnings.catch_warnings(action="ignore"):
            try:
                assert_equal(way.compute(case, truth), way.expected(truth), TOLERANCE)
            except Exception as error:  # whatever it is, it is what the verdict is about
                ours = isinstance(error, ValueError) and _raised_in_helpers(error)
                said = f"{name}: {type(error).__name__}: {error}"
                (verdict.refused if ours else verdict.broken).append(said)
        if places := before.changes():
            verdict.broken.append(f"{name}: changes {', '.join(places[:3])}")
    return verdict


def _raised_in_helpers(error: Exception) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").startswith("helpers.")
