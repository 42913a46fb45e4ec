"""What helpers set of torch: nothing. And its private names: none at import, and without each."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

from helpers import gradients, norms
from helpers.transforms.fallback import FallbackWarning
from tests.support import zoo
from tests.support.ways import empty_out

HELPERS = Path(__file__).parents[2] / "helpers"
TREES = {}
for _path in HELPERS.rglob("*.py"):
    TREES[_path.relative_to(HELPERS).as_posix()] = ast.parse(_path.read_text("utf-8"))
NODES = {file: list(ast.walk(tree)) for file, tree in TREES.items()}
LATER = {
    "_swap_tensor_impl": "test_without_it_the_loop_is_taken",
    "_backward_hooks": "test_without_it_the_loop_is_taken",
    "_C": "test_without_them_gradients_are_formed",
    "_functorch": "test_without_them_gradients_are_formed",
    "_add_batch_dim": "test_without_them_gradients_are_formed",
    "_unwrap_batched": "test_without_them_gradients_are_formed",
    "_cache_enabled": "without it, a cache around a call is not refused",
    "_torchdynamo_orig_callable": "without it, what is compiled is refused where it is traced",
    "_apply": "without it, an AttributeError: `to` leaves complex parameters as they are",
    "_version": "without it, an AttributeError: no public name tells of a write",
    "_post_accumulate_grad_hooks": "without it, an AttributeError",
    "_python_dispatch": "what torch's notes on extending name; measures alone",
    "_per_sample_grad": "a peer in a comparison: absent",
}
"""The private names of torch that functions use when they run, and what lets each."""
OF_PYTHON = {"_fields", "_asdict", "_getframe", "__code__"}


def names(node: ast.AST) -> list[str]:
    """Return the parts of an import or attribute, and what `getattr` and `hasattr` look for."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
        return [each.value for each in node.args[1:2] if isinstance(each, ast.Constant)]
    parts = []
    if isinstance(node, ast.ImportFrom):
        parts += (node.module or "").split(".")
    if isinstance(node, ast.Import | ast.ImportFrom):
        for each in node.names:
            parts += each.name.split(".")
    return parts


def is_private(name: str) -> bool:
    return name == "__code__" or (name.startswith("_") and not name.endswith("_"))


def own_names() -> set[str]:
    """Return what helpers define and set themselves."""
    own = set()
    for nodes in NODES.values():
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(getattr(node, "ctx", None), ast.Store):
                own.add(getattr(node, "attr", None) or getattr(node, "id", None))
    return own


def test_no_private_names_at_import_and_few_later():
    at_import, later = set(), set()
    for nodes in NODES.values():
        # What stands in the body of a function runs later; its decorators and defaults do not.
        inside = set()
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                for statement in node.body:
                    inside.update(ast.walk(statement))
            elif isinstance(node, ast.Lambda):
                inside.update(ast.walk(node.body))
        for node in nodes:
            private = set(filter(is_private, names(node)))
            if node in inside:
                later |= private
            else:
                at_import |= private
    assert at_import - own_names() == set()
    assert later - own_names() - OF_PYTHON == LATER.keys()


@pytest.mark.parametrize("name", ["cnn", "embedding", "tied weight"])
def test_without_them_gradients_are_formed(name, monkeypatch):
    def compute():
        case = zoo.make(name)
        out = empty_out(case)
        case.pass_to(gradients.func_gradients, out=out)
        return case.pass_to(norms.gradient_norms), out

    expected = compute()
    for module in ("torch._C._functorch", "torch._functorch.pyfunctorch"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.warns(FallbackWarning, match="recorded"):
                found = compute()
        torch.testing.assert_close(found, expected)


class Gone:
    """An attribute that is there no more."""

    def __get__(self, instance, owner=None):
        raise AttributeError("it has gone")

    __set__ = __get__


@pytest.mark.parametrize("name", ["_swap_tensor_impl", "_backward_hooks"])
def test_without_it_the_loop_is_taken(name, monkeypatch):
    case = zoo.make("linear")
    if name == "_backward_hooks":
        case.model.weight.register_hook(lambda gradient: 2 * gradient)
        monkeypatch.setattr(torch.Tensor, name, Gone(), raising=False)
    else:
        monkeypatch.delattr(torch._C, name)
    expected = case.pass_to(gradients.loop_gradients)
    for out in (None, empty_out(case)):
        with pytest.warns(FallbackWarning):
            found = case.pass_to(gradients.func_gradients, out=out)
        torch.testing.assert_close(found, expected)


SWITCHES = {
    # For good, as its caller asks, or put back by its caller.
    "devices.py": {"allow_tf32", "fp32_precision"},
    "transforms/switches.py": {"enabled"},  # under a lock, with a count
}
"""The attributes of torch that a file of helpers sets."""
TORCH = re.compile(r"torch(\.|$)")
SETTERS = "setattr", "delattr", "__setattr__", "__delattr__", "patch", "object"


class Assignments(ast.NodeVisitor):
    """Finds what code sets or deletes on torch, its modules, its classes and what leads there."""

    def __init__(self) -> None:
        self.of_torch: set[str] = set()  # names that lead to torch
        self.found: set[str] = set()

    def leads_to_torch(self, node: ast.AST | None) -> bool:
        if isinstance(node, ast.Call):  # of others, the result is the caller's own
            reads = ast.unparse(node.func) in ("vars", "type", "getattr")
            return reads and self.leads_to_torch(node.args[0])
        if isinstance(node, ast.Name):
            return node.id in self.of_torch
        return node is not None and any(map(self.leads_to_torch, ast.iter_child_nodes(node)))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for each in node.names:
                if TORCH.match(getattr(node, "module", None) or each.name):
                    self.of_torch.add(each.asname or each.name.split(".")[0])
        elif isinstance(node, ast.Assign):
            self.bind(node.targets, node.value)
        elif isinstance(node, ast.For | ast.comprehension):
            self.bind([node.target], node.iter)
        elif isinstance(node, ast.Call) and node.args:
            self.look_at_call(node)
        elif isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            self.look_at_target(node)
        self.generic_visit(node)

    def bind(self, targets: list[ast.AST], value: ast.AST) -> None:
        """Note names of what leads to torch."""
        if self.leads_to_torch(value):
            for target in targets:
                for each in getattr(target, "elts", [target]):
                    if isinstance(each, ast.Name):
                        self.of_torch.add(each.id)

    def look_at_target(self, node: ast.AST) -> None:
        in_a_list = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        if not in_a_list and self.leads_to_torch(getattr(node, "value", None)):
            self.found.add(getattr(node, "attr", "[]"))

    def look_at_call(self, node: ast.Call) -> None:
        """Look for `setattr`, and for patches by a dotted name."""
        if ast.unparse(node.func).rpartition(".")[2] in SETTERS:
            first = node.args[0]
            if TORCH.match(str(getattr(first, "value", ""))) or self.leads_to_torch(first):
                self.found.add("setattr")


def test_nothing_is_assigned_to_torch():
    found = {}
    for file, tree in TREES.items():
        assignments = Assignments()
        assignments.visit(tree)
        assignments.visit(tree)  # again, since a function may use a name that is bound below it
        if assignments.found:
            found[file] = assignments.found
    assert found == SWITCHES
