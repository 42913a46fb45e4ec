"""Errors and warnings as teaching material: raise one on purpose, show it, go on."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def expected(
    error: type[Exception], fragment: str, *, seen_on: str | None = None
) -> Iterator[None]:
    """Run a block that must raise, and print the error's type and a fragment of its message.

    The whole message of an error often holds addresses and paths; a fragment of it is the same
    on every machine, and is what a reader would search for. Warnings on the way are not shown.

    Args:
        error: The type that the block must raise.
        fragment: A part of the error's message.
        seen_on: The version of torch, such as `"2.13"`, on which the block was seen to raise.
            With another one, what the block does instead is printed, and nothing is raised.

    Raises:
        AssertionError: The block raised nothing.
        Exception: Whatever the block raised, unchanged, if its type or message is another.
    """
    known = seen_on is None or torch.__version__.startswith(f"{seen_on}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as raised:
        message = " ".join(str(raised).split())
        if isinstance(raised, error) and fragment in message:
            print(f"{type(raised).__name__}: ...{fragment}...")
        elif known:
            raise
        else:
            print(f"changed: it raises {type(raised).__name__}: {message}")
    else:
        says = f"expected {error.__name__} with {fragment!r}, and nothing was raised"
        if known:
            raise AssertionError(says)
        print(f"changed: {says}")


@contextmanager
def warned(fragment: str) -> Iterator[None]:
    """Run a block, show none of its warnings, and print whether one holds a fragment.

    Args:
        fragment: A part of the warning's message.
    """
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield
    said = [each for each in heard if fragment in " ".join(str(each.message).split())]
    kind = said[0].category.__name__ if said else "no warning"
    print(f"{kind}: ...{fragment}...")
