"""Checks of exercises: is it still to do, of a wrong shape, of wrong values, or correct?"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from helpers.compare import TOLERANCES, largest_error

STILL_TO_DO = "still to do: write "
"""How the message of the error begins that an answer not yet written raises."""


class Refused(AssertionError):
    """What is wrong with an answer, in one sentence."""


@contextmanager
def check(exercise: str) -> Iterator[None]:
    """Print a verdict on the answer that is called in this block.

    A block that ends is correct; `expect` and `require` end it early. An error in the answer
    itself is raised as it is, since its traceback says most.

    Args:
        exercise: The name of the exercise, for example `"Exercise 1"`.
    """
    try:
        yield
    except Refused as refusal:
        print(f"{exercise}: {refusal}")
    except NotImplementedError as error:  # torch raises it too
        if not str(error).startswith(STILL_TO_DO):
            raise
        print(f"{exercise}: {error}")
    else:
        print(f"{exercise}: correct")


def expect(what: str, got: Any, expected: Any, *, tolerance: float | None = None) -> None:
    """Compare what an answer gave with what is right: first the shape, then the values.

    Args:
        what: A name of the result, for the verdict.
        got: What the answer gave: a tensor, a number, or a dictionary or tuple of these.
        expected: What is right, in the same form.
        tolerance: The largest error that counts as equal, relative to the largest entry of
            `expected`; `None` means that of the dtype expected, as in `helpers.compare`.

    Raises:
        Refused: They differ, with a sentence that says in which of these ways.
    """
    pairs = list(_pairs(what, got, expected))
    for name, mine, right in pairs:
        if mine.shape != right.shape:
            raise Refused(
                f"wrong shape: {name}: expected {tuple(right.shape)}, got {tuple(mine.shape)}"
            )
    for name, mine, right in pairs:
        limit = TOLERANCES.get(right.dtype, 0.0) if tolerance is None else tolerance
        error = largest_error(mine, right)
        if error > limit:
            raise Refused(f"right shape, wrong values: {name}: off by {error:.1e} of the largest")
    shapes = list(dict.fromkeys(str(tuple(right.shape)) for _, _, right in pairs))
    shown = ", ".join(shapes[:3]) + (", ..." if len(shapes) > 3 else "")
    print(f"{what}: right shape and values, {shown}")


def expect_shape(what: str, got: Any, shape: tuple[int, ...]) -> None:
    """Demand the shape of a result of which the values are checked in another way.

    Args:
        what: A name of the result, for the verdict.
        got: What the answer gave.
        shape: The shape of a right answer.

    Raises:
        Refused: It is no tensor, or has another shape.
    """
    if not isinstance(got, Tensor):
        raise Refused(f"wrong type: {what}: expected a tensor, got {type(got).__name__}")
    if tuple(got.shape) != tuple(shape):
        raise Refused(f"wrong shape: {what}: expected {tuple(shape)}, got {tuple(got.shape)}")


def require(what: str, holds: bool) -> None:
    """Demand of an answer something besides its values, and print that it holds.

    Args:
        what: The demand, as a sentence that is true of a right answer.
        holds: Whether it is true of this one.

    Raises:
        Refused: It is not.
    """
    if not holds:
        raise Refused(f"not so yet: {what}")
    print(f"{what}: yes")


def _pairs(what: str, got: Any, expected: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    """List the tensors of two results of one form, in pairs, with their names."""
    if isinstance(expected, dict | tuple):
        kind = type(expected)
        if not isinstance(got, kind):
            raise Refused(
                f"wrong type: {what}: expected a {kind.__name__}, got {type(got).__name__}"
            )
        if isinstance(expected, tuple):
            got, expected = (dict(enumerate(each)) for each in (got, expected))
        for problem, first, second in (("missing", expected, got), ("not expected", got, expected)):
            names = [str(name) for name in first if name not in second]
            if names:
                raise Refused(f"{problem}: {what}: {', '.join(names)}")
        for name in expected:
            yield from _pairs(f"{what}[{name!r}]", got[name], expected[name])
        return
    if isinstance(expected, Tensor) and not isinstance(got, Tensor):
        raise Refused(f"wrong type: {what}: expected a tensor, got {type(got).__name__}")
    if not isinstance(got, Tensor | int | float):
        raise Refused(f"wrong type: {what}: expected a number, got {type(got).__name__}")
    yield what, torch.as_tensor(got), torch.as_tensor(expected)
