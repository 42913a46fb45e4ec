"""Errors as teaching material: raise one on purpose, show it, go on."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def expected(error: type[Exception], fragment: str) -> Iterator[None]:
    """Run a block that must raise, and print the error's type and a fragment of its message.

    The whole message of an error often holds addresses and paths; a fragment of it is the same
    on every machine, and is what a reader would search for. Warnings on the way are not shown.

    Args:
        error: The type that the block must raise.
        fragment: A part of the error's message.

    Raises:
        AssertionError: The block raised nothing.
        Exception: Whatever the block raised, unchanged, if its type or message is another.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as raised:
        if not isinstance(raised, error) or fragment not in " ".join(str(raised).split()):
            raise
        print(f"{type(raised).__name__}: ...{fragment}...")
    else:
        raise AssertionError(f"expected {error.__name__} with {fragment!r}, and nothing was raised")
