"""Names in the code of a cell: what it defines, reaches for and uses, as far as can be read."""

import ast
import contextlib
import functools
import re
import symtable
from collections.abc import Iterator

from IPython.core.inputtransformer2 import TransformerManager


@functools.cache
def defined(source: str) -> set[str]:
    """List the names that a cell defines at its top, as far as can be read in it."""
    if statements(source) is None:
        return set(re.findall(r"(?m)^(?:async )?(?:def|class) (\w+)", source))
    named = {n.name for n in _outer(source) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return named | {n.id for n in _outer(source) if isinstance(n, ast.Name) and _stored(n)}


@functools.cache
def reached(source: str) -> set[str]:
    """List the names that a cell imports at its top, or of which it changes a part."""
    found = set()
    for node in _outer(source):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.Attribute | ast.Subscript) and _stored(node):
            while isinstance(node, ast.Attribute | ast.Subscript):
                node = node.value
            found |= {node.id} if isinstance(node, ast.Name) else set()
    return found


@functools.cache
def used(source: str) -> set[str]:
    """List the names that a cell looks up outside of its functions."""
    try:
        tables = [symtable.symtable(python(source), "cell", "exec")]
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()
    found = {each.get_name() for each in tables[0].get_symbols() if each.is_referenced()}
    while tables:
        table = tables.pop()
        tables += table.get_children()
        found |= {each.get_name() for each in table.get_symbols() if each.is_global()}
    return found


def _stored(node: ast.Name | ast.Attribute | ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Store)


def _outer(source: str) -> Iterator[ast.AST]:
    """Walk through a cell, but into none of its functions and classes."""
    todo: list[ast.AST] = list(statements(source) or [])
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


@functools.cache
def statements(source: str) -> list[ast.stmt] | None:
    """Parse a cell, if that is possible."""
    try:
        return ast.parse(python(source)).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def words(source: str) -> set[str]:
    """List all words of an answer: names, attributes, imports, and what stands in quotes."""
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()
    found = [getattr(node, each, "") for node in nodes for each in ("id", "attr", "name", "value")]
    return {part for each in found if isinstance(each, str) for part in each.split(".")}


@functools.cache
def python(source: str) -> str:
    """Leave out what only Jupyter runs, `%time`, `!ls` and `name?`."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        bare = re.sub(r"(?m)\A\s*%%.*|^([ \t]*)%time +", r"\1", source)
        with contextlib.suppress(SyntaxError):
            bare = TransformerManager().transform_cell(bare)
        return re.sub(r"(?m)^([ \t]*).*get_ipython\(\).*$", r"\1pass", bare)
    return source
