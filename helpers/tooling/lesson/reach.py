"""What a lesson reaches of the helpers: their modules, and in each the definitions that it uses.

An import of a module runs all of it. But a copy of a lesson that stands alone need not hold the
functions that nothing calls. It carries the definitions that the cells name, those that these name
in turn, and the statements that do something when a module is imported.
"""

import ast
import copy
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from helpers.tooling.lesson import files, modules


class Reach:
    """What has been reached so far.

    Attributes:
        kept: By module, its parts by number, each with the names that are needed of it.
    """

    def __init__(self, *, whole: bool, without: Collection[str] = ()) -> None:
        """Begin with nothing; with `whole`, a module that is reached is reached with all it has."""
        self.whole, self.without = whole, without
        self.modules: dict[Path, list[modules.Part]] = {}
        self.kept: dict[Path, dict[int, set[str]]] = {}

    def load(self, path: Path) -> None:
        """Reach a module: its packages, and what an import of it needs.

        Raises:
            ValueError: It is not Python, or it imports of `helpers` what is not there.
        """
        if path in self.modules:
            return
        self.modules[path], self.kept[path] = modules.take_apart(path, self.without), {}
        for folder in path.parents:
            self.load(folder / modules.PACKAGE)
        for number, part in enumerate(self.modules[path]):
            if self.whole or part.runs:
                self._keep(path, number, set(part.names))

    def follow(self, target: modules.Target, attributes: list[str]) -> None:
        """Reach what is meant by a name that stands for `target`, with attributes behind it."""
        self.load(target.module)
        first, *rest = [target.name, *attributes] if target.name else [*attributes, "*"]
        parts = self.modules[target.module]
        binding = [number for number, part in enumerate(parts) if first in part.names]
        inner = modules.find(target.module, first)
        for number in binding:
            self._keep(target.module, number, {first})
            if bound := parts[number].names[first]:
                self.follow(bound, rest)
        if not binding and inner:
            self.follow(modules.Target(inner), [name for name in rest if name != "*"])
        elif not binding:  # all of it, what it makes while it runs, or what every module has
            for number, part in enumerate(parts):
                self._keep(target.module, number, set(part.names))

    def use(self, node: ast.AST, scope: Mapping[str, modules.Target | None]) -> None:
        """Reach what a piece of code names, where `scope` says what its free names stand for."""
        scope = dict(scope)
        for each in ast.walk(node):
            if isinstance(each, ast.Import | ast.ImportFrom):
                imported = modules.imported(each, "")
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
            self.use(part.node, {name: modules.Target(path, name) for name in bound})

    def _import(self, targets: Iterator[modules.Target | None]) -> None:
        for target in targets:
            if target and target.name:
                self.follow(target, [])
            elif target:
                self.load(target.module)

    def _visit(self, node: ast.AST, scope: Mapping[str, modules.Target | None]) -> None:
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
        trees.append(modules.parse(without_magics(cell.source), place))
        for each in ast.walk(trees[-1]):
            if isinstance(each, ast.Import | ast.ImportFrom):
                scope |= modules.imported(each, place)
    for tree in trees:
        reach.use(tree, scope)
    return reach


def _reduced(part: modules.Part, names: set[str]) -> str:
    """Give the source of a part, and of an import that part which binds the names."""
    if not isinstance(part.node, ast.Import | ast.ImportFrom) or names >= part.names.keys():
        return part.source
    node = copy.copy(part.node)
    node.names = [each for each in node.names if modules.bound_name(each, node) in names]
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


def without_magics(source: str) -> str:
    """Turn what only IPython understands, such as `%timeit` and `!ls`, into calls of functions."""
    # A magic that runs the rest of its cell as Python may hide an import; others hold no Python.
    source = re.sub(r"\A\s*%%(time|timeit|capture|prun)\b.*\n", "", source)
    return TransformerManager().transform_cell(source)
