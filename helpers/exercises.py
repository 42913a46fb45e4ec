"""Checks of exercises: still to do, wrong shape, wrong values, or correct?"""

import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from numbers import Number
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from helpers.compare import TOLERANCES, largest_error

STILL_TO_DO = "still to do: write "
"""How the error message of an unwritten answer begins."""


class Refused(AssertionError):
    """An answer is wrong, in the way that the message says."""


@contextmanager
def check(
    exercise: str, answer: Callable[..., Any], /, **inputs: Any
) -> Iterator[Callable[..., Any]]:
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
    before = _SavedInputs(inputs)
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
    # A number is right in any dtype.
    if not isinstance(expected, Number):
        for pair in pairs:
            if not _serves(pair.mine.dtype, pair.target.dtype):
                dtypes = f"expected {pair.target.dtype}, got {pair.mine.dtype}"
                raise Refused(f"wrong dtype: {pair.name}: {dtypes}")
    for pair in pairs:
        limit = tolerance
        if limit is None:
            limit = TOLERANCES.get(pair.target.dtype.to_real(), 0.0)
        error = largest_error(_countable(pair.mine), _countable(pair.target))
        if error > limit:
            problem = "holds NaN or infinity"
            if isfinite(error):
                problem = f"off by {error:.1e} of the largest entry"
            raise Refused(f"right shape, wrong values: {pair.name}: {problem}")
    shapes = [str(tuple(pair.target.shape)) for pair in pairs]
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
    expected: Tensor | dict[str, Tensor]
    if isinstance(shape, dict):
        expected = {}
        for name, size in shape.items():
            expected[name] = torch.empty(size, device="meta")
    else:
        expected = torch.empty(shape, device="meta")
    _pairs_of_one_shape(label, got, expected)


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
        ending = f": measured {measured}" if measured else ""
        raise Refused(f"not so yet: {requirement}{ending}")
    print(f"{requirement}: yes")


class _Pair(NamedTuple):
    """A tensor of an answer, and the right one."""

    name: str
    mine: Tensor
    target: Tensor


def _pairs_of_one_shape(label: str, got: Any, expected: Any) -> list[_Pair]:
    """List the tensors of two results in pairs, with their names; shapes must agree."""
    pairs = list(_pairs(label, got, expected))
    for pair in pairs:
        shape, expected_shape = tuple(pair.mine.shape), tuple(pair.target.shape)
        if shape != expected_shape:
            raise Refused(f"wrong shape: {pair.name}: expected {expected_shape}, got {shape}")
    return pairs


def _pairs(label: str, got: Any, expected: Any) -> Iterator[_Pair]:
    if isinstance(expected, dict):
        if not isinstance(got, dict):
            raise _wrong_type(label, got, type(expected).__name__)
        yield from _pairs_of_items(label, got, expected)
    elif isinstance(expected, tuple | list):
        if not isinstance(got, tuple | list):
            raise _wrong_type(label, got, type(expected).__name__)
        yield from _pairs_of_items(label, dict(enumerate(got)), dict(enumerate(expected)))
    elif isinstance(expected, Tensor) and not isinstance(got, Tensor):
        raise _wrong_type(label, got, "tensor")
    elif not isinstance(got, Tensor | Number):  # NumPy's numbers are Numbers, too
        raise _wrong_type(label, got, "number")
    else:
        # `Tensor.detach`, since a subclass of Tensor may have another `detach`.
        yield _Pair(label, Tensor.detach(torch.as_tensor(got)), torch.as_tensor(expected))


def _pairs_of_items(label: str, got: dict[Any, Any], expected: dict[Any, Any]) -> Iterator[_Pair]:
    missing = [str(name) for name in expected if name not in got]
    if missing:
        raise Refused(f"missing: {label}: {', '.join(missing)}")
    unexpected = [str(name) for name in got if name not in expected]
    if unexpected:
        raise Refused(f"not expected: {label}: {', '.join(unexpected)}")
    for name, item in expected.items():
        yield from _pairs(f"{label}[{name!r}]", got[name], item)


def _serves(mine: torch.dtype, target: torch.dtype) -> bool:
    """Tell whether a dtype is acceptable: of the same kind, and not narrower if floating."""
    same_kind = (
        mine.is_floating_point == target.is_floating_point
        and mine.is_complex == target.is_complex
        and (mine == torch.bool) == (target == torch.bool)
    )
    narrower = target.is_floating_point and mine.itemsize < target.itemsize
    return same_kind and not narrower


def _countable(tensor: Tensor) -> Tensor:
    """Make truth values and integers int64: in uint8, 0 - 255 is 1, and torch subtracts no bool."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor
    return tensor.to(torch.int64)


def _wrong_type(label: str, got: Any, expected: str) -> Refused:
    # "NoneType" says little to people who forgot to return.
    hint = ": the function returned nothing (does it end in `return`?)" if got is None else ""
    return Refused(f"wrong type: {label}: expected a {expected}, got {type(got).__name__}{hint}")


def _raised(error: BaseException) -> str:
    """Print the lines of the lesson that led to an error, and return the verdict on it."""
    if isinstance(error, NotImplementedError) and str(error).startswith(STILL_TO_DO):
        return str(error)  # torch raises the same type for other reasons
    frames = list(traceback.walk_tb(error.__traceback__))
    del frames[0]  # of `check` itself
    first_frame, _ = frames[0]
    # Between the lesson's lines lie up to a hundred of torch, which say little.
    of_lesson = []
    for frame, line in frames:
        if frame.f_globals is first_frame.f_globals:
            of_lesson.append((frame, line))
    summary = traceback.StackSummary.extract(of_lesson)
    summary[0].name = "the check"
    for step in summary[-4:]:
        print(f"  line {step.lineno} of a cell, in {step.name}: {step.line}")
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return f"your answer raised {type(error).__name__}: {first_line}"


def _first_three(names: list[str]) -> str:
    unique = list(dict.fromkeys(names))
    text = ", ".join(unique[:3])
    return f"{text}, ..." if len(unique) > 3 else text


@dataclass
class _SavedTensor:
    """A tensor, and what it was at one moment."""

    tensor: Tensor
    storage: Tensor
    """Its `.data`, in the memory that it had: `model.double()` gives a parameter another."""
    values: Tensor
    required_grad: bool

    def is_unchanged(self) -> bool:
        same_flag = self.tensor.requires_grad == self.required_grad
        return same_flag and _equal(self.tensor.data, self.values)

    def restore(self) -> None:
        if self.tensor.requires_grad != self.required_grad:
            if not self.tensor.is_leaf:  # computed in place from a parameter
                self.tensor.detach_()
            self.tensor.requires_grad_(self.required_grad)
        self.tensor.data = self.storage.copy_(self.values)


class _SavedInputs:
    """The contents of an exercise's inputs at one moment: tensors, models and dictionaries."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._tensors: dict[str, _SavedTensor] = {}
        self._dicts: dict[str, tuple[dict[Any, Any], dict[Any, Any]]] = {}  # each with a copy
        self._modes: dict[Module, bool] = {}
        for name, value in values.items():
            self._remember(name, value)

    def _remember(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and _can_be_written(value):
            copy = value.data.clone()
            self._tensors[name] = _SavedTensor(value, value.data, copy, value.requires_grad)
        parts = {}
        if isinstance(value, dict):
            self._dicts[name] = (value, dict(value))
            parts = value
        elif isinstance(value, Module):
            for module in value.modules():
                self._modes[module] = module.training
            parts = value.state_dict(keep_vars=True)
        elif isinstance(value, list | tuple):
            parts = dict(enumerate(value))
        for key, part in parts.items():
            self._remember(f"{name}[{key!r}]", part)

    def restore(self) -> list[str]:
        """Restore everything; name what had changed, except modes: `grads['fc1.weight']`."""
        changed = []
        for name, (dictionary, before) in self._dicts.items():
            if not _same_items(dictionary, before):
                changed.append(name)
                dictionary.clear()
                dictionary.update(before)
        for module, mode in self._modes.items():
            module.training = mode
        for name, saved in self._tensors.items():
            if not saved.is_unchanged():
                changed.append(name)
                saved.restore()
        return changed


def _same_items(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    """Compare two dictionaries: keys in order, and the very same objects as values."""
    if list(first) != list(second):
        return False
    return all(first[key] is second[key] for key in second)


def _can_be_written(tensor: Tensor) -> bool:
    """Tell whether a tensor is plain, and no two of its entries share memory."""
    if type(tensor) not in (Tensor, Parameter) or tensor.layout != torch.strided:
        return False
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size > 1 and stride == 0:  # expanded
            return False
    return True


def _equal(first: Tensor, second: Tensor) -> bool:
    """Compare two tensors exactly; a NaN equals itself."""
    if (first.dtype, first.shape, first.device) != (second.dtype, second.shape, second.device):
        return False
    return first.is_meta or torch.allclose(first, second, rtol=0.0, atol=0.0, equal_nan=True)
