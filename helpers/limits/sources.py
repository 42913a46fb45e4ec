"""The source of functions, with what they use of their own module."""

import dis
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType


def listing(*objects: Callable[..., object]) -> str:
    """Return the source of functions or classes, one below the other."""
    texts = (textwrap.dedent(inspect.getsource(each)).strip() for each in objects)
    return "\n\n\n".join(texts)


def with_helpers(function: Callable[..., object]) -> list[Callable[..., object]]:
    """List the functions and classes of its module that a function uses, and last the function."""
    found: list[Callable[..., object]] = []
    for name in _names(function.__code__):
        used = function.__globals__.get(name)
        if getattr(used, "__module__", None) != function.__module__:
            continue
        if inspect.isfunction(used):
            found.extend(with_helpers(used))
        elif inspect.isclass(used):
            found.extend(c for c in used.__mro__[::-1] if c.__module__ == used.__module__)
    return list(dict.fromkeys([*found, function]))


def _names(code: CodeType) -> Iterator[str]:
    """List the globals that a function looks up, its inner functions included."""
    yield from (i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
