"""Modules of `helpers` taken apart: their statements, what these bind, and what they import."""

import ast
import symtable
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

HELPERS = Path(__file__).parents[2]
PACKAGE = Path("__init__.py")


@dataclass(frozen=True)
class Target:
    """What a name stands for: a module of `helpers`, or a name inside one, `*` for all of it."""

    module: Path
    name: str | None = None


@dataclass
class Part:
    """A statement at the top of a module, with the comments above it.

    Attributes:
        node: The statement.
        source: Its lines.
        names: What it binds; what comes from `helpers`, with what that is.
        runs: Whether an import of the module needs it for what it does.
    """

    node: ast.stmt
    source: str
    names: dict[str, Target | None]
    runs: bool


def take_apart(path: Path, without: Collection[str]) -> list[Part]:
    """Take a module apart.

    Args:
        path: The module, relative to the folder `helpers`.
        without: Methods to leave out, as `Class.method`.

    Raises:
        ValueError: It is not Python, or imports of `helpers` what is not there.
    """
    place = f"helpers/{path.as_posix()}"
    text = _without_methods((HELPERS / path).read_text("utf-8"), without, place)
    lines, done, parts = text.splitlines(), 0, []
    for node in parse(text, place).body:
        source = "\n".join(lines[done : node.end_lineno])
        done = node.end_lineno
        if parts and not parts[-1].runs and _is_text(node):
            parts[-1].source += f"\n{source}"  # what a constant means stands below it
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = imported(node, place)
            for name, target in names.items():  # a package names a module of its own
                if target and target.module == path and (inner := find(path, target.name or "")):
                    names[name] = Target(inner)
            parts.append(Part(node, source, names, runs=False))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            parts.append(Part(node, source, {node.name: None}, runs=False))
        else:
            bound = {n.id for n in ast.walk(node) if _is_stored(n)}
            given = isinstance(node, ast.Assign | ast.AnnAssign) and all(
                isinstance(n, ast.Name | ast.Tuple) for n in _targets(node)
            )
            parts.append(Part(node, source, dict.fromkeys(bound), runs=not given))
    return parts


def _without_methods(source: str, names: Collection[str], place: str) -> str:
    lines: list[str | None] = source.splitlines()
    for node in parse(source, place).body if names else ():
        for above, each in pairwise(node.body) if isinstance(node, ast.ClassDef) else ():
            if f"{node.name}.{getattr(each, 'name', '')}" in names:
                lines[above.end_lineno : each.end_lineno] = [None] * (
                    each.end_lineno - above.end_lineno
                )
    return "\n".join(line for line in lines if line is not None)


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def parse(source: str, place: str) -> ast.Module:
    """Read Python, or say in one sentence where it is none.

    Raises:
        ValueError: It is not Python; `place` says where it stands.
    """
    try:
        return ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ValueError(f"{place} is not Python, see `{line}`: {error.msg}") from error


def imported(node: ast.Import | ast.ImportFrom, place: str) -> dict[str, Target | None]:
    """Say what an import binds; what comes from elsewhere than `helpers` stands for None.

    Raises:
        ValueError: It imports of `helpers` what is not there; `place` says where it stands.
    """
    found = {}
    for each in node.names:
        target = None
        if isinstance(node, ast.Import):
            if module := _module(each.name, place):
                target = Target(module, None if each.asname else "*")
        elif node.module and not node.level and (module := _module(node.module, place)):
            name = f"{node.module}.{each.name}"
            if each.name == "*" or _defines(module, each.name):
                target = Target(module, each.name)
            elif inner := find(module, each.name):
                target = Target(inner)
            else:
                raise ValueError(f"{place} imports {name}, which is not there")
        found[bound_name(each, node)] = target
    return found


def bound_name(name: ast.alias, node: ast.Import | ast.ImportFrom) -> str:
    """Give the name that an import binds: of `import a.b` that is `a`."""
    plain = name.name.partition(".")[0] if isinstance(node, ast.Import) else name.name
    return name.asname or plain


def _module(name: str, place: str) -> Path | None:
    """Find the file of a module of `helpers` by its dotted name; None for one of elsewhere.

    Raises:
        ValueError: There is no such module.
    """
    root, *parts = name.split(".")
    if root != HELPERS.name:
        return None
    path = PACKAGE
    for part in parts:
        path = find(path, part)
        if path is None:
            raise ValueError(f"{place} imports {name}, which is not there")
    return path


def find(package: Path, name: str) -> Path | None:
    """Find a module inside a package."""
    folder = package.parent
    both = (folder / name / PACKAGE, folder / f"{name}.py") if package.name == PACKAGE.name else ()
    return next((path for path in both if (HELPERS / path).exists()), None)


def _defines(module: Path, name: str) -> bool:
    """Say whether a module has something of this name, as far as its source tells."""
    table = symtable.symtable((HELPERS / module).read_text("utf-8"), str(module), "exec")
    return name in table.get_identifiers()
