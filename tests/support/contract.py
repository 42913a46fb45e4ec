"""One model against the contract: every way equal to a loop in float64, and the model unharmed."""

import traceback
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from helpers import gradients, jacobians, norms
from tests.support.snapshot import Snapshot
from tests.support.zoo import squared

TOLERANCE = 1e-6
"""The largest difference over the largest entry that counts as equal.

All is float64, but some models compute a part in float32.
"""
LIMIT = 0.5


class Verdict(NamedTuple):
    """What became of a model: sentences that begin with the way, such as `func: other names`."""

    broken: list[str]
    """Where it broke the contract: wrong numbers, a damaged model, an error."""
    refused: list[str]
    """What a way refused with a `ValueError` of ours, which the contract allows."""


def check(model: nn.Module, data: Tensor) -> Verdict:
    """Take all ways, and compare.

    Args:
        model: In evaluation mode, with outputs `(B, Y)`, all in float64.
        data: `(B, ...)`.
    """
    with torch.no_grad():
        targets = torch.randn_like(model(data[:1]).expand(len(data), -1))
    truth = by_pairs(model, data, targets)
    squares = sum(rows.flatten(1).abs().square().sum(1) for rows in truth.values())
    factors = (LIMIT / squares.sqrt()).clamp(max=1)
    clipped = {
        name: torch.einsum("b,b...->...", factors.to(rows.dtype), rows)
        for name, rows in truth.items()
    }
    args = (model, squared, data, targets)
    out = {name: torch.full_like(rows, torch.nan) for name, rows in truth.items()}

    def contracted() -> dict[str, Tensor]:
        flat = jacobians.func_jacobians(model, data)
        residuals = torch.cat([model(row).detach() for row in data.split(1)]) - targets
        flat = torch.einsum("byp,by->bp", flat, residuals.to(flat.dtype))
        return jacobians.unflatten_jacobians(flat, model)

    Compute = Callable[[], dict[str, Tensor]]
    ways: dict[str, tuple[Compute, dict[str, Tensor]]] = {
        "loop": (lambda: gradients.loop_gradients(*args), truth),
        "func": (lambda: gradients.func_gradients(*args), truth),
        "chunks": (lambda: gradients.func_gradients(*args, chunk_size=2), truth),
        "out": (lambda: gradients.func_gradients(*args, chunk_size=2, out=out), truth),
        "norms": (lambda: {"": norms.gradient_norms(*args)}, {"": squares.sqrt()}),
        "clipped": (lambda: norms.clipped_sum(*args, LIMIT, chunk_size=2), clipped),
        "Jacobians": (contracted, truth),
    }
    verdict = Verdict([], [])
    for way, (compute, expected) in ways.items():
        before = Snapshot(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                verdict.broken.extend(f"{way}: {each}" for each in _off(compute(), expected))
            except Exception as error:  # whatever it is, it is what the verdict is about
                ours = isinstance(error, ValueError) and _raised_in_helpers(error)
                said = f"{way}: {type(error).__name__}: {error}"
                (verdict.refused if ours else verdict.broken).append(said)
        if places := before.changes():
            verdict.broken.append(f"{way}: changes {', '.join(places[:3])}")
    return verdict


def by_pairs(model: nn.Module, data: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Differentiate in a loop that shares no code with the helpers.

    Each sample is taken twice in a batch of two, and half the gradient counts: torch's backward of
    normalisations is wrong for a batch of one whose gradient comes transposed.
    """
    rows: dict[str, list[Tensor]] = {}
    leaves = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for sample, target in zip(data.split(1), targets.split(1), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = squared(model(sample.repeat_interleave(2, 0)), target.repeat(2, 1))
        found = [torch.zeros_like(leaf) for leaf in leaves.values()]
        if leaves and loss.requires_grad:
            found = torch.autograd.grad(loss, [*leaves.values()], materialize_grads=True)
        for name, gradient in zip(leaves, found, strict=True):
            rows.setdefault(name, []).append(gradient / 2)
    return {name: torch.stack(gradients) for name, gradients in rows.items()}


def _off(got: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    if list(got) != list(expected):
        return [f"names {', '.join(got)}"]
    largest = max(rows.abs().max().item() for rows in expected.values()) or 1.0
    off = {name: (got[name] - rows).abs().max().item() for name, rows in expected.items()}
    wrong = [name for name, error in off.items() if not error <= TOLERANCE * largest]
    if not wrong:
        return []
    worst = max(wrong, key=off.__getitem__)
    share = f"{off[worst] / largest:.1e} of the largest entry"
    return [f"{len(wrong)} of {len(off)} parameters off, {worst} by {share}"]


def _raised_in_helpers(error: Exception) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").startswith("helpers.")
