"""Checks of exercises: still to do, wrong shape, wrong values, or correct?"""

import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from helpers.compare import TOLERANCES, largest_error

STILL_TO_DO = "still to do: write "
"""How the error message of an unwritten answer begins."""


class Refused(AssertionError):
    """An answer is wrong, in the way that the message says."""


@contextmanager
def check(exercise: str, answer: Callable, /, **inputs: Any) -> Iterator[Callable]:
    """Print a verdict on an answer that the block calls.

    The answer is correct if the block ends normally; `expect`, `require` and errors may end it
    early; errors are shown after the lesson's lines that led to them. What the answer changes in
    place is restored for later exercises, and the answer counts as incorrect. Model modes, disabled
    gradients and warning filters are restored silently.

    Args:
        exercise: The name of the exercise, for example `"Exercise 1"`.
        answer: The function or class that the reader writes.
        inputs: `name=value` pairs it works on: tensors, models, or dicts, lists, tuples of these.

    Yields:
        The answer, to call.
    """
    before = _Snapshot(inputs)
    raised = False
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()), warnings.catch_warnings():
            yield answer
        verdict = "correct"
    except Refused as refusal:
        verdict = str(refusal)
    except (Exception, SystemExit) as error:
        raised = True
        verdict = _raised(error)
    finally:  # after an interrupt, too
        changed = before.restore()
    if changed and not raised:  # wrong values may come from this alone
        verdict = f"not so yet: it changed {_first_three(changed)} in place, which is put back"
    print(f"{exercise}: {verdict}")
    if verdict != "correct" and "NBGRADER_EXECUTION" in os.environ:
        raise Refused(verdict)  # nbgrader gives the point unless the cell raises


def expect(label: str, got: Any, expected: Any, *, tolerance: float | None = None) -> None:
    """Compare a result with the right one: first shapes, then dtypes, then values.

    Args:
        label: A name of the result, for the verdict.
        got: The answer's result: a tensor, a number, or a dictionary, tuple or list of these.
        expected: The right result, in the same form; tuples and lists are interchangeable, and so
            are dtypes of one kind, unless `got` is of a narrower floating point type.
        tolerance: The largest error that counts as equal, relative to the largest entry of
            `expected`; `None` means that of its dtype in `helpers.compare.TOLERANCES`, or 0.

    Raises:
        Refused: They differ, with a sentence that says in which of these ways.
    """
    pairs = _pairs_of_one_shape(label, got, expected)
    for name, mine, target in pairs:
        if not isinstance(expected, Number) and not _serves(mine.dtype, target.dtype):
            raise Refused(f"wrong dtype: {name}: expected {target.dtype}, got {mine.dtype}")
    for name, mine, target in pairs:
        limit = TOLERANCES.get(target.dtype.to_real(), 0.0) if tolerance is None else tolerance
        error = largest_error(mine, target)
        if error > limit:
            off = f"off by {error:.1e} of the largest entry"
            problem = off if isfinite(error) else "holds NaN or infinity"
            raise Refused(f"right shape, wrong values: {name}: {problem}")
    shapes = list(dict.fromkeys(str(tuple(target.shape)) for _, _, target in pairs))
    print(f"{label}: right shape and values, {_first_three(shapes)}")


def expect_shape(label: str, got: Any, shape: tuple[int, ...] | dict[str, tuple[int, ...]]) -> None:
    """Require the shape of a result whose values are checked elsewhere.

    Args:
        label: A name of the result, for the verdict.
        got: The answer's result.
        shape: The right shape, or `{name: shape}` for a dictionary.

    Raises:
        Refused: It is not a tensor or a dictionary of tensors, or has another shape.
    """
    shapes = shape if isinstance(shape, dict) else {label: shape}
    expected = {name: torch.empty(size, device="meta") for name, size in shapes.items()}
    _pairs_of_one_shape(label, got, expected if isinstance(shape, dict) else expected[label])


def require(requirement: str, holds: bool, *, measured: str = "") -> None:
    """Require a property of an answer besides its values, and print that it holds.

    Args:
        requirement: The requirement, a sentence that is true of a correct answer.
        holds: Whether it is true of this answer.
        measured: The measured value, for the verdict, for example `"1.9 times"`.

    Raises:
        Refused: It does not hold.
    """
    if not holds:
        raise Refused(f"not so yet: {requirement}" + (f": measured {measured}" if measured else ""))
    print(f"{requirement}: yes")


def _pairs_of_one_shape(label: str, got: Any, expected: Any) -> list[tuple[str, Tensor, Tensor]]:
    """List the tensors of two results in pairs, with their names; shapes must agree."""
    pairs = list(_pairs(label, got, expected))
    for name, mine, target in pairs:
        shape, expected_shape = tuple(mine.shape), tuple(target.shape)
        if shape != expected_shape:
            raise Refused(f"wrong shape: {name}: expected {expected_shape}, got {shape}")
    return pairs


def _pairs(label: str, got: Any, expected: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    if isinstance(expected, dict | tuple | list):
        kind = dict if isinstance(expected, dict) else tuple | list
        if not isinstance(got, kind):
            raise _wrong_type(label, got, type(expected).__name__)
        mine, target = (dict(x if kind is dict else enumerate(x)) for x in (got, expected))
        for problem, first, second in (("missing", target, mine), ("not expected", mine, target)):
            if names := [str(name) for name in first if name not in second]:
                raise Refused(f"{problem}: {label}: {', '.join(names)}")
        for name in target:
            yield from _pairs(f"{label}[{name!r}]", mine[name], target[name])
    elif isinstance(expected, Tensor) and not isinstance(got, Tensor):
        raise _wrong_type(label, got, "tensor")
    elif not isinstance(got, Tensor | Number):  # NumPy's numbers are Numbers, too
        raise _wrong_type(label, got, "number")
    else:
        yield label, Tensor.detach(torch.as_tensor(got)), torch.as_tensor(expected)


def _serves(mine: torch.dtype, wanted_dtype: torch.dtype) -> bool:
    """Tell whether a dtype is acceptable: of the same kind, and not narrower if floating."""
    kinds = {(d.is_floating_point, d.is_complex, d == torch.bool) for d in (mine, wanted_dtype)}
    return len(kinds) == 1 and (
        mine.itemsize >= wanted_dtype.itemsize or not wanted_dtype.is_floating_point
    )


def _wrong_type(label: str, got: Any, expected: str) -> Refused:
    # "NoneType" says little to people who forgot to return.
    hint = ": the function returned nothing (does it end in `return`?)" if got is None else ""
    return Refused(f"wrong type: {label}: expected a {expected}, got {type(got).__name__}{hint}")


def _raised(error: BaseException) -> str:
    """Print the lines of the lesson that led to an error, and return the verdict on it."""
    if isinstance(error, NotImplementedError) and str(error).startswith(STILL_TO_DO):
        return str(error)  # torch raises the same type for other reasons
    steps = list(traceback.walk_tb(error.__traceback__))[1:]  # the first is `check` itself
    lesson = steps[0][0].f_globals
    # Between them lie up to a hundred lines of torch, which say little.
    summary = traceback.StackSummary.extract(step for step in steps if step[0].f_globals is lesson)
    summary[0].name = "the check"
    for step in summary[-4:]:
        print(f"  line {step.lineno} of a cell, in {step.name}: {step.line}")
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return f"your answer raised {type(error).__name__}: {first_line}"


def _first_three(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


class _Snapshot:
    """The contents of tensors, models and dictionaries at one moment."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._tensors: dict[str, tuple[Tensor, Tensor, Tensor, bool]] = {}
        self._dicts: dict[str, tuple[dict, dict]] = {}
        self._modes: dict[Module, bool] = {}
        for name, value in values.items():
            self._remember(name, value)

    def _remember(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and _can_be_written(value):
            # `.data` recovers the old storage after `model.double()` has replaced it.
            self._tensors[name] = (value, value.data, value.data.clone(), value.requires_grad)
        if isinstance(value, dict):
            self._dicts[name] = (value, dict(value))
        elif isinstance(value, Module):
            self._modes |= {module: module.training for module in value.modules()}
            value = value.state_dict(keep_vars=True)
        elif isinstance(value, list | tuple):
            value = dict(enumerate(value))
        for key, item in value.items() if isinstance(value, dict) else ():
            self._remember(f"{name}[{key!r}]", item)

    def restore(self) -> list[str]:
        """Restore everything; name what had changed, except modes: `grads['fc1.weight']`."""
        changed = []
        for name, (value, entries) in self._dicts.items():
            if [(k, id(v)) for k, v in value.items()] != [(k, id(v)) for k, v in entries.items()]:
                changed.append(name)
                value.clear()
                value.update(entries)
        for module, mode in self._modes.items():
            module.training = mode
        for name, (value, data, before, required) in self._tensors.items():
            if value.requires_grad == required and _equal(value.data, before):
                continue
            changed.append(name)
            if value.requires_grad != required:
                # A tensor computed in place from a parameter is not a leaf: detach it first.
                (value if value.is_leaf else value.detach_()).requires_grad_(required)
            value.data = data.copy_(before)
        return changed


def _can_be_written(tensor: Tensor) -> bool:
    """Tell whether a tensor is plain, and no two of its entries share memory."""
    plain = type(tensor) in (Tensor, Parameter) and tensor.layout == torch.strided
    sizes = zip(tensor.shape, tensor.stride(), strict=True) if plain else ()
    return plain and all(size < 2 or stride for size, stride in sizes)


def _equal(first: Tensor, second: Tensor) -> bool:
    """Compare two tensors exactly; a NaN equals itself."""
    if (first.dtype, first.shape, first.device) != (second.dtype, second.shape, second.device):
        return False
    return first.is_meta or torch.allclose(first, second, rtol=0.0, atol=0.0, equal_nan=True)
