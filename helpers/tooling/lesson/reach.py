"""What a lesson reaches of the helpers: their modules, and in each the definitions that it uses.

An import of a module runs all of it. But a copy of a lesson that stands alone need not hold the
functions that nothing calls. It carries the definitions that the cells name, those that these name
in turn, and the statements that do something when a module is imported.
"""

import ast
import copy
import re
import symtable
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from helpers.tooling.lesson import files

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


class Reach:
    """What has been reached so far.

    Attributes:
        kept: By module, its parts by number, each with the names that are needed of it.
    """

    def __init__(self, *, whole: bool, without: Collection[str] = ()) -> None:
        """Begin with nothing; with `whole`, a module that is reached is reached with all it has."""
        self.whole, self.without = whole, without
        self.modules: dict[Path, list[Part]] = {}
        self.kept: dict[Path, dict[int, set[str]]] = {}

    def load(self, path: Path) -> None:
        """Reach a module: its packages, and what an import of it needs.

        Raises:
            ValueError: It is not Python, or it imports of `helpers` what is not there.
        """
        if path in self.modules:
            return
        self.modules[path], self.kept[path] = _parts(path, self.without), {}
        for folder in path.parents:
            self.load(folder / PACKAGE)
        for number, part in enumerate(self.modules[path]):
            if self.whole or part.runs:
                self._keep(path, number, set(part.names))

    def follow(self, target: Target, attributes: list[str]) -> None:
        """Reach what is meant by a name that stands for `target`, with attributes behind it."""
        self.load(target.module)
        first, *rest = [target.name, *attributes] if target.name else [*attributes, "*"]
        parts = self.modules[target.module]
        binding = [number for number, part in enumerate(parts) if first in part.names]
        inner = _find(target.module, first)
        for number in binding:
            self._keep(target.module, number, {first})
            if bound := parts[number].names[first]:
                self.follow(bound, rest)
        if not binding and inner:
            self.follow(Target(inner), [name for name in rest if name != "*"])
        elif not binding:  # all of it, what it makes while it runs, or what every module has
            for number, part in enumerate(parts):
                self._keep(target.module, number, set(part.names))

    def use(self, node: ast.AST, scope: Mapping[str, Target | None]) -> None:
        """Reach what a piece of code names, where `scope` says what its free names stand for."""
        scope = dict(scope)
        for each in ast.walk(node):
            if isinstance(each, ast.Import | ast.ImportFrom):
                imported = _imported(each, "")
                scope |= imported
                self._import(imported.values())
        self._visit(node, scope)

    def _keep(self, path: Path, number: int, names: set[str]) -> None:
        """Keep a part of a module for the sake of some names, and reach what it names in turn."""
        part, known = self.modules[path][number], self.kept[path].get(number)
        if known is not None and names <= known:
            return
        self.kept[path][number] = (known or set()) | names
        if isinstance(part.node, ast.Import | ast.ImportFrom):
            self._import(part.names[name] for name in names)
        elif known is None:
            bound = {name for each in self.modules[path] for name in each.names}
            self.use(part.node, {name: Target(path, name) for name in bound})

    def _import(self, targets: Iterator[Target | None]) -> None:
        for target in targets:
            if target and target.name:
                self.follow(target, [])
            elif target:
                self.load(target.module)

    def _visit(self, node: ast.AST, scope: Mapping[str, Target | None]) -> None:
        root, attributes = node, []
        while isinstance(root, ast.Attribute):
            attributes.insert(0, root.attr)
            root = root.value
        if isinstance(root, ast.Name):
            if target := scope.get(root.id):
                self.follow(target, attributes)
            return
        for child in ast.iter_child_nodes(node):
            self._visit(child, scope)


def needed(notebook: NotebookNode) -> list[Path]:
    """List the helper modules that a lesson imports, and those that they import in turn.

    Returns:
        Paths relative to the folder `helpers`, in order of their names, packages included.

    Raises:
        ValueError: A cell is not Python, or imports of `helpers` what is not there.
    """
    return sorted(_reached(notebook, Reach(whole=True)).modules)


def carried(notebook: NotebookNode, without: Collection[str] = ()) -> dict[Path, str]:
    """Write the helper modules that a lesson imports with the definitions alone that it reaches.

    Args:
        notebook: The lesson, or an edition of it.
        without: Methods that nothing calls there, as `Class.method`.

    Returns:
        The source of each, by its path relative to the folder `helpers`, in order of their names.

    Raises:
        ValueError: As in `needed`.
    """
    reach = _reached(notebook, Reach(whole=False, without=without))
    return {
        path: _shortened(
            "\n".join(
                _reduced(reach.modules[path][number], names)
                for number, names in sorted(reach.kept[path].items())
            ).strip("\n")
        )
        for path in sorted(reach.modules)
    }


def _reached(notebook: NotebookNode, reach: Reach) -> Reach:
    trees, scope = [], {}
    for cell in files.code_cells(notebook):
        place = files.place(notebook, cell)
        trees.append(_parsed(without_magics(cell.source), place))
        for each in ast.walk(trees[-1]):
            if isinstance(each, ast.Import | ast.ImportFrom):
                scope |= _imported(each, place)
    for tree in trees:
        reach.use(tree, scope)
    return reach


def _reduced(part: Part, names: set[str]) -> str:
    """Give the source of a part, and of an import that part which binds the names."""
    if not isinstance(part.node, ast.Import | ast.ImportFrom) or names >= part.names.keys():
        return part.source
    node = copy.copy(part.node)
    node.names = [each for each in node.names if _bound(each, node) in names]
    above = part.source[: len(part.source) - len(part.source.lstrip("\n"))]
    return above + ast.unparse(node)


def _shortened(source: str) -> str:
    """Leave of each docstring the first paragraph, and empty lines only between definitions."""
    lines: list[str | None] = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            if "" in lines[first:last]:
                end = lines.index("", first)
                lines[end - 1] += '"""'
                lines[end:last] = [None] * (last - end)
            if isinstance(node, ast.ClassDef) and lines[last : last + 1] == [""]:
                lines[last] = None
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if line is not None))
    text = re.sub(r"(?m)^((?:from|import) .*\n)\n(?=from |import )", r"\1", text)
    return re.sub(r'\A(""".*"""\n)(?=\S)', r"\1\n", text)


def _parts(path: Path, without: Collection[str]) -> list[Part]:
    """Take a module apart, and leave out some methods."""
    place = f"helpers/{path.as_posix()}"
    text = _without_methods((HELPERS / path).read_text("utf-8"), without, place)
    lines, done, parts = text.splitlines(), 0, []
    for node in _parsed(text, place).body:
        source = "\n".join(lines[done : node.end_lineno])
        done = node.end_lineno
        if parts and not parts[-1].runs and _is_text(node):
            parts[-1].source += f"\n{source}"  # what a constant means stands below it
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = _imported(node, place)
            for name, target in names.items():  # a package names a module of its own
                if target and target.module == path and (inner := _find(path, target.name or "")):
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
    for node in _parsed(source, place).body if names else ():
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


def without_magics(source: str) -> str:
    """Turn what only IPython understands, such as `%timeit` and `!ls`, into calls of functions."""
    # A magic that runs the rest of its cell as Python may hide an import; others hold no Python.
    source = re.sub(r"\A\s*%%(time|timeit|capture|prun)\b.*\n", "", source)
    return TransformerManager().transform_cell(source)


def _parsed(source: str, place: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ValueError(f"{place} is not Python, see `{line}`: {error.msg}") from error


def _imported(node: ast.Import | ast.ImportFrom, place: str) -> dict[str, Target | None]:
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
            elif inner := _find(module, each.name):
                target = Target(inner)
            else:
                raise ValueError(f"{place} imports {name}, which is not there")
        found[_bound(each, node)] = target
    return found


def _bound(name: ast.alias, node: ast.Import | ast.ImportFrom) -> str:
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
        path = _find(path, part)
        if path is None:
            raise ValueError(f"{place} imports {name}, which is not there")
    return path


def _find(package: Path, name: str) -> Path | None:
    """Find a module inside a package."""
    folder = package.parent
    both = (folder / name / PACKAGE, folder / f"{name}.py") if package.name == PACKAGE.name else ()
    return next((path for path in both if (HELPERS / path).exists()), None)


def _defines(module: Path, name: str) -> bool:
    """Say whether a module has something of this name, as far as its source tells."""
    table = symtable.symtable((HELPERS / module).read_text("utf-8"), str(module), "exec")
    return name in table.get_identifiers()
