"""Checks of exercises: is it still to do, of a wrong shape, of wrong values, or correct?"""

import linecache
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import isfinite
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from helpers.compare import TOLERANCES, largest_error
from helpers.exercises.alone import alone, file_of
from helpers.exercises.snapshots import Snapshot

STILL_TO_DO = "still to do: write "
"""How the message of the error begins that an answer not yet written raises."""


SECONDS = 60
"""How long an answer may take in all cases of its check, where the system can interrupt it."""


class Refused(AssertionError):
    """What is wrong with an answer, in one sentence."""


class TooLong(BaseException):
    """An answer takes too long; what catches errors of its own does not catch this one."""


def check(
    exercise: str, answer: Callable, /, *, sees: Collection[str] = (), **given: Any
) -> AbstractContextManager[Callable]:
    """Print a verdict on the answer that is called in this block.

    A block that ends is correct; `expect` and `require` end it early. So does an error: it becomes
    a verdict, after the lines of the lesson that led to it. What the answer changes in place is
    put back, since later exercises use it, and the answer is not correct then.

    Args:
        exercise: The name of the exercise, for example `"Exercise 1"`.
        answer: The function or class that the reader writes.
        sees: Names of data of the lesson that the task allows the answer to use.
        given: `name=value` of what the answer works on, as `helpers.exercises.snapshots` takes it.

    Returns:
        A context manager that gives the answer to call: `answer`, which finds no other data of the
        lesson while it runs, as `helpers.exercises.alone` says.
    """
    lesson = sys._getframe(1).f_globals
    if _is_older(answer, lesson):
        return _checked(exercise, _refuse_as_older, lesson, given)
    return _checked(exercise, alone(answer, lesson, sees), lesson, given)


@contextmanager
def _checked(
    exercise: str, answer: Callable, lesson: dict[str, Any], given: dict[str, Any]
) -> Iterator[Callable]:
    before = Snapshot(given)
    raised = False
    try:
        with _in_time():
            yield answer
        verdict = "correct"
    except Refused as refusal:
        verdict = str(refusal)
        if verdict.startswith("correct"):  # no check says so: the answer raised it
            verdict = f"not {verdict}"
    except TooLong:
        verdict = f"not so yet: it ends within {SECONDS} s"
    except (Exception, SystemExit) as error:
        raised = True
        verdict = _raised(error, lesson)
    finally:  # after an interrupt, too
        changed = before.restore()
    if changed and not raised:  # wrong values may come from this alone
        verdict = f"not so yet: it changed {_some(changed)} in place, which is put back"
    print(f"{exercise}: {verdict}")
    if verdict != "correct" and "NBGRADER_EXECUTION" in os.environ:
        raise Refused(verdict)  # nbgrader gives the point unless the cell raises


@contextmanager
def _in_time() -> Iterator[None]:
    """End a block that takes too long, where the system has timers: not on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread().name != "MainThread":
        yield
        return

    def end(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1)  # then each second, if it is caught somewhere
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


def _is_older(answer: Callable, lesson: dict[str, Any]) -> bool:
    """Say whether the last cell that defines an answer, by what Jupyter ran, is another one."""
    line = re.compile(rf"(?m)^(?:def|class) {re.escape(getattr(answer, '__name__', ''))}\b")
    written = [cell for cell in lesson.get("In", ()) if line.search(cell)]
    source = "".join(linecache.getlines(file_of(answer)))
    return bool(written and source) and written[-1].strip() != source.strip()


def _refuse_as_older(*_: Any, **__: Any) -> None:
    raise Refused("not so yet: its cell is newer than what runs: run it again, and read its error")


def expect(what: str, got: Any, expected: Any, *, tolerance: float | None = None) -> None:
    """Compare what an answer gave with what is right: first shapes, then dtypes, then values.

    Args:
        what: A name of the result, for the verdict.
        got: What the answer gave: a tensor, a number, or a dictionary, tuple or list of these.
        expected: What is right, in the same form; tuples and lists are taken for each other, and
            dtypes of one kind where `got` has at least the bits of `expected`.
        tolerance: The largest error that counts as equal, relative to the largest entry of
            `expected`; `None` means that of the dtype expected, as in `helpers.compare`.

    Raises:
        Refused: They differ, with a sentence that says in which of these ways.
    """
    pairs = _pairs_of_one_shape(what, got, expected)
    for name, mine, right in pairs:
        if isinstance(expected, Tensor | dict | tuple | list) and not _serves(mine, right):
            raise Refused(f"wrong dtype: {name}: expected {right.dtype}, got {mine.dtype}")
    for name, mine, right in pairs:
        limit = TOLERANCES.get(right.dtype, 0.0) if tolerance is None else tolerance
        error = largest_error(mine, right)
        if error > limit:
            size = f"off by {error:.1e} of the largest entry"
            problem = size if isfinite(error) else "holds NaN or infinity"
            raise Refused(f"right shape, wrong values: {name}: {problem}")
    shapes = list(dict.fromkeys(str(tuple(right.shape)) for _, _, right in pairs))
    print(f"{what}: right shape and values, {_some(shapes)}")


def expect_shape(what: str, got: Any, shape: tuple[int, ...] | dict[str, tuple[int, ...]]) -> None:
    """Demand the shape of a result of which the values are checked in another way.

    Args:
        what: A name of the result, for the verdict.
        got: What the answer gave.
        shape: The shape of a right answer, or `{name: shape}` if that is a dictionary.

    Raises:
        Refused: It is no tensor or dictionary of these, or has another shape.
    """
    shapes = shape if isinstance(shape, dict) else {"": shape}
    expected = {name: torch.empty(each, device="meta") for name, each in shapes.items()}
    _pairs_of_one_shape(what, got, expected if isinstance(shape, dict) else expected[""])


def require(what: str, holds: bool, *, measured: str = "") -> None:
    """Demand of an answer something besides its values, and print that it holds.

    Args:
        what: The demand, as a sentence that is true of a right answer.
        holds: Whether it is true of this one.
        measured: What was measured instead, for the verdict, for example `"1.9 times"`.

    Raises:
        Refused: It is not.
    """
    if not holds:
        raise Refused(f"not so yet: {what}" + (f": measured {measured}" if measured else ""))
    print(f"{what}: yes")


def _pairs_of_one_shape(what: str, got: Any, expected: Any) -> list[tuple[str, Tensor, Tensor]]:
    """List the tensors of two results in pairs, as `_pairs`, and demand that shapes agree."""
    pairs = list(_pairs(what, got, expected))
    for name, mine, right in pairs:
        if mine.shape != right.shape:
            shapes = f"expected {tuple(right.shape)}, got {tuple(mine.shape)}"
            raise Refused(f"wrong shape: {name}: {shapes}")
    return pairs


def _pairs(what: str, got: Any, expected: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    """List the tensors of two results of one form, in pairs, with their names."""
    if isinstance(expected, dict | tuple | list):
        kind = dict if isinstance(expected, dict) else tuple | list
        if not isinstance(got, kind):
            raise _wrong_type(what, got, type(expected).__name__)
        if not isinstance(expected, dict):
            if len(got) != len(expected):
                lengths = f"expected {len(expected)} items, got {len(got)}"
                raise Refused(f"wrong length: {what}: {lengths}")
            got, expected = (dict(enumerate(tuple(each))) for each in (got, expected))
        got = dict(got)  # with the methods of a dictionary
        for problem, first, second in (("missing", expected, got), ("not expected", got, expected)):
            names = [str(name) for name in first if name not in second]
            if names:
                raise Refused(f"{problem}: {what}: {', '.join(names)}")
        for name in expected:
            yield from _pairs(f"{what}[{name!r}]", got[name], expected[name])
        return
    if isinstance(expected, Tensor) and not _is_of_torch(got):
        raise _wrong_type(what, got, "tensor")
    if not isinstance(got, Tensor | Number):  # NumPy's numbers are Numbers, too
        raise _wrong_type(what, got, "number")
    yield what, Tensor.detach(torch.as_tensor(got)), torch.as_tensor(expected)


def _is_of_torch(got: Any) -> bool:
    """Say whether it is a tensor as torch makes them: another may have operators of its own."""
    if not isinstance(got, Tensor):
        return False
    return type(got) in (nn.Parameter, type(torch.empty(0, device=got.device)))


def _serves(mine: Tensor, right: Tensor) -> bool:
    """Say whether a dtype can stand for another: of one kind, and of no fewer bits if floating."""
    if mine.is_floating_point() and right.is_floating_point():
        return torch.finfo(mine.dtype).bits >= torch.finfo(right.dtype).bits
    whole = all(
        not each.is_floating_point() and not each.is_complex() and each.dtype != torch.bool
        for each in (mine, right)
    )
    return whole or mine.dtype == right.dtype


def _wrong_type(what: str, got: Any, expected: str) -> Refused:
    # Python's name of it says little to those who forgot to return.
    hint = ": the function returned nothing (does it end in `return`?)" if got is None else ""
    return Refused(f"wrong type: {what}: expected a {expected}, got {type(got).__name__}{hint}")


def _raised(error: Exception, lesson: dict[str, Any]) -> str:
    """Print the lines of the lesson that led to an error, and return the verdict on it."""
    if isinstance(error, NotImplementedError) and str(error).startswith(STILL_TO_DO):
        return str(error)  # torch raises the same type for other reasons
    steps = list(traceback.walk_tb(error.__traceback__))[1:]  # the first is `check` itself
    # Between them lie up to a hundred lines of torch, which say little.
    own = traceback.StackSummary.extract(step for step in steps if step[0].f_globals is lesson)
    own[0].name = "the check"
    for step in own[-4:]:
        print(f"  line {step.lineno} of a cell, in {step.name}: {step.line}")
    if type(error) is NameError and error.name in lesson:
        return (
            f"not so yet: it uses {error.name!r} of the lesson or its check: compute with what the "
            "arguments bring, since the check has other data, too"
        )
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return f"your answer raised {type(error).__name__}: {first_line}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
