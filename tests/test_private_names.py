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

HELPERS = Path(__file__).parents[1] / "helpers"
TREES = {
    path.relative_to(HELPERS).as_posix(): ast.parse(path.read_text())
    for path in HELPERS.rglob("*.py")
}
NODES = {file: [*ast.walk(tree)] for file, tree in TREES.items()}
LATER = {
    "_swap_tensor_impl": "test_without_it_the_loop_is_taken",
    "_backward_hooks": "test_without_it_the_loop_is_taken",
    "_C": "test_without_them_gradients_are_formed",
    "_functorch": "test_without_them_gradients_are_formed",
    "_add_batch_dim": "test_without_them_gradients_are_formed",
    "_unwrap_batched": "test_without_them_gradients_are_formed",
    "_cache_enabled": "without it, a cache around a call is not refused",
    "_torchdynamo_orig_callable": "without it, what is compiled is refused where it is traced",
    "_version": "without it, an AttributeError: no public name tells of a write",
    "_post_accumulate_grad_hooks": "without it, an AttributeError",
    "_python_dispatch": "what torch's notes on extending name; measures alone",
    "_per_sample_grad": "a peer in a comparison: absent",
}
"""The private names of torch that functions use when they run, and what lets each."""
OF_PYTHON = {"_fields", "_asdict", "_getframe", "__code__"}


def names(node: ast.AST) -> list[str]:
    """Return the parts of an import or attribute, and what `getattr` and `hasattr` look for."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        dotted = [getattr(node, "module", None) or "", *(each.name for each in node.names)]
        return ".".join(dotted).split(".")
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
        return [each.value for each in node.args[1:2] if isinstance(each, ast.Constant)]
    return [node.attr] if isinstance(node, ast.Attribute) else []


def test_no_private_names_at_import_and_few_later():
    own, found = set(), {True: set(), False: set()}
    for node in (node for nodes in NODES.values() for node in nodes):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            own.add(getattr(node, "attr", None) or getattr(node, "id", None))
    for nodes in NODES.values():
        bodies = (node.body for node in nodes if isinstance(node, ast.FunctionDef | ast.Lambda))
        parts = (part for body in bodies for part in (body if isinstance(body, list) else [body]))
        later = {node for part in parts for node in ast.walk(part)}
        for node in nodes:
            private = {n for n in names(node) if n.startswith("_") and not n.endswith("_")}
            found[node in later] |= private | {"__code__"}.intersection(names(node))
    assert found[False] - own == set()
    assert found[True] - own - OF_PYTHON == LATER.keys()


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
    "devices.py": {"allow_tf32"},  # for good, as its caller asks
    "transforms/switches.py": {"enabled"},  # under a lock, with a count
}
"""The attributes of torch that a file of helpers sets."""
TORCH = re.compile(r"torch(\.|$)")
SETTERS = "setattr", "delattr", "__setattr__", "__delattr__", "patch", "object"


def assigned(nodes: list[ast.AST]) -> set[str]:
    """Return what code sets or deletes on torch, its modules, its classes and what leads there."""
    known, found = set(), set()

    def is_torch(node: ast.AST | None) -> bool:
        if isinstance(node, ast.Call):  # of others, the result is the caller's own
            reads = ast.unparse(node.func) in ("vars", "type", "getattr")
            return reads and is_torch(node.args[0])
        if isinstance(node, ast.Name):
            return node.id in known
        return node is not None and any(map(is_torch, ast.iter_child_nodes(node)))

    for node in nodes * 2:  # the second time with the names of names
        if isinstance(node, ast.Import | ast.ImportFrom):
            for each in node.names:
                if TORCH.match(getattr(node, "module", None) or each.name):
                    known.add(each.asname or each.name.split(".")[0])
        given = getattr(node, "value", getattr(node, "iter", None))
        if isinstance(node, ast.Assign | ast.For | ast.comprehension) and is_torch(given):
            for target in getattr(node, "targets", None) or [node.target]:
                known |= {n.id for n in getattr(target, "elts", [target]) if hasattr(n, "id")}
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            in_a_list = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
            if not in_a_list and is_torch(getattr(node, "value", None)):
                found.add(getattr(node, "attr", "[]"))
        if isinstance(node, ast.Call) and node.args:
            named = TORCH.match(str(getattr(node.args[0], "value", "")))
            if ast.unparse(node.func).rpartition(".")[2] in SETTERS:
                found |= {"setattr"} if named or is_torch(node.args[0]) else set()
    return found


def test_nothing_is_assigned_to_torch():
    found = {file: assigned(nodes) for file, nodes in NODES.items()}
    assert {file: names for file, names in found.items() if names} == SWITCHES
