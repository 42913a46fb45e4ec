"""One model against the contract: every way equal to a loop in float64, and the model unharmed."""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from helpers import gradients, jacobians, norms
from helpers.tooling.wild.traces import difference, everything
from helpers.transforms.fallback import FallbackWarning

TOLERANCE = 1e-6
"""The largest difference over the largest entry that counts as equal.

All is float64, but some models compute a part in float32.
"""
LIMIT = 0.5
HELD, REFUSED, RAISED, WRONG, DAMAGED = "held", "refused", "raised", "wrong", "damaged"
BAD = (RAISED, WRONG, DAMAGED)
"""Verdicts that break the contract. A refusal is a `ValueError` of one sentence, and none."""


@dataclass
class Result:
    """What a model did, way by way."""

    title: str
    verdicts: dict[str, str] = field(default_factory=dict)
    """By way, one of the five words."""
    says: list[str] = field(default_factory=list)
    """Warnings, refusals and errors, each once."""

    def note(self, text: str) -> None:
        """Add a text that is not there yet."""
        text = " ".join(text.split())
        if text not in self.says:
            self.says.append(text)

    as_dict = asdict


def squared(predictions: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error."""
    return (predictions - targets).square().sum() / 2


def check(title: str, model: nn.Module, data: Tensor) -> Result:
    """Take all ways, and compare.

    Args:
        title: What the report calls the model.
        model: In evaluation mode, with outputs `(B, Y)`.
        data: `(B, ...)`.

    Returns:
        The verdicts. A model that does not run by itself has none, and `says` tells why.
    """
    result = Result(title)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            targets = torch.randn_like(model(data[:1]).expand(len(data), -1))
        truth = by_pairs(model, data, targets)
    except Exception as error:  # a model of any kind, which may not run here at all
        result.note(f"does not run by itself: {type(error).__name__}: {error}")
        return result
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

    ways: dict[str, tuple[Callable[[], Any], Any]] = {
        "loop": (lambda: gradients.loop_gradients(*args), truth),
        "func": (lambda: gradients.func_gradients(*args), truth),
        "chunks": (lambda: gradients.func_gradients(*args, chunk_size=2), truth),
        "out": (lambda: gradients.func_gradients(*args, chunk_size=2, out=out), truth),
        "norms": (lambda: {"": norms.gradient_norms(*args)}, {"": squares.sqrt()}),
        "clipped": (lambda: norms.clipped_sum(*args, LIMIT, chunk_size=2), clipped),
        "Jacobians": (contracted, truth),
    }
    for way, (compute, expected) in ways.items():
        _take(result, way, compute, expected, model)
    return result


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


def _take(
    result: Result, way: str, compute: Callable[[], Any], expected: Any, model: nn.Module
) -> None:
    """Take one way, and note its verdict and what was said."""
    before = everything(model)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            verdict = _judge(result, way, compute(), expected)
        except ValueError as refusal:
            verdict = REFUSED if _is_ours(refusal) else RAISED
            result.note(f"{way}: {refusal}")
        except Exception as error:  # whatever it is, it is what the report is about
            verdict = RAISED
            result.note(f"{way}: {type(error).__name__}: {error}")
    for warning in heard:
        if warning.category is FallbackWarning:
            result.note(str(warning.message))
    places = difference(before, everything(model))
    if places:
        verdict = DAMAGED
        result.note(f"{way} changes {', '.join(places[:3])}")
    result.verdicts[way] = verdict


def _judge(result: Result, way: str, got: dict[str, Tensor], expected: dict[str, Tensor]) -> str:
    largest = max(rows.abs().max().item() for rows in expected.values())
    if list(got) != list(expected):
        result.note(f"{way}: other names")
        return WRONG
    off = {name: (got[name] - rows).abs().max().item() for name, rows in expected.items()}
    wrong = [name for name, error in off.items() if not error <= TOLERANCE * (largest or 1)]
    if wrong:
        worst = max(wrong, key=off.__getitem__)
        result.note(
            f"{way}: {len(wrong)} of {len(off)} parameters off, {worst} by "
            f"{off[worst] / (largest or 1):.1e} of the largest entry"
        )
    return WRONG if wrong else HELD


def _is_ours(error: Exception) -> bool:
    step = error.__traceback__
    while step.tb_next is not None:
        step = step.tb_next
    return step.tb_frame.f_globals.get("__name__", "").startswith("helpers.")
