"""The source of functions, with what they use of their own module, as blocks that run."""

import ast
import dis
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType

GIVEN = {
    *("torch", "F", "nn", "Tensor", "functional_call", "grad", "vmap"),
    *("Case", "Classifier", "bare_gradients", "sequences", "tokens"),
}
"""What lesson 6 imports before its first entry; any other name a block imports itself."""


def listing(*objects: Callable[..., object]) -> str:
    """Return the source of functions or classes of one module, below what they have to import."""
    texts = [textwrap.dedent(inspect.getsource(each)).strip() for each in objects]
    names = _names_in("\n\n".join(texts)) - GIVEN
    imports = "\n".join(_imports(sys.modules[objects[0].__module__], names))
    return "\n\n\n".join([imports, *texts] if imports else texts)


def block(function: Callable[..., object]) -> str:
    """Write a side of an entry as a cell of the lesson: what it uses, itself, and a call."""
    return f"{listing(*with_helpers(function))}\n\n\nlimits.run({function.__name__}, *few)"


def with_helpers(function: Callable[..., object]) -> list[Callable[..., object]]:
    """List the functions and classes of its module that a function uses, and last the function."""
    found: list[Callable[..., object]] = []
    for name in _globals(function.__code__):
        used = function.__globals__.get(name)
        if getattr(used, "__module__", None) != function.__module__:
            continue
        if inspect.isfunction(used):
            found.extend(with_helpers(used))
        elif inspect.isclass(used):
            found.extend(c for c in used.__mro__[::-1] if c.__module__ == used.__module__)
    return list(dict.fromkeys([*found, function]))


def _globals(code: CodeType) -> Iterator[str]:
    """List the globals that a function looks up, its inner functions and classes included."""
    lookups = ("LOAD_GLOBAL", "LOAD_NAME")
    yield from (i.argval for i in dis.get_instructions(code) if i.opname in lookups)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)


def _names_in(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _imports(module: object, names: set[str]) -> list[str]:
    """Write those import statements at the top of a module that bind one of the names."""
    lines = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [each for each in node.names if (each.asname or each.name) in names]
            if node.names:
                lines.append(ast.unparse(node))
    return lines
