"""Private names of torch: none when the helpers are imported, and beside each a public way."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers import gradients, norms
from tests.support import zoo
from tests.support.ways import empty_out

HELPERS = Path(__file__).parents[1] / "helpers"
LATER = {
    ("layers/recorder.py", "_passed_on"): "test_without_them_the_record_is_the_same",
    ("benchmark.py", "_each_operation"): "what torch's notes on extending name; measures alone",
    # These are about what they import.
    ("study/peers/expanded_weights.py", "build"): "absent",
}
"""Where a function uses private names when it runs, and the test, or the reason, that lets it."""


def is_private(name: str) -> bool:
    parts = name.split(".")
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    of_torch = parts[0] == "torch" and hidden
    return of_torch or parts[-1] == "__code__"


def names(node: ast.AST) -> list[str]:
    """Return the names with dots of an import or an attribute."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{each.name}" for each in node.names]
    return [ast.unparse(node)] if isinstance(node, ast.Attribute) else []


def uses(node: ast.AST, function: str | None = None) -> Iterator[tuple[str | None, str]]:
    """List the private names in code, each with the outermost function that uses it when called.

    Decorators, defaults and annotations of a function belong to the code around it.
    """
    inside = node.body if isinstance(node, ast.FunctionDef | ast.Lambda) else []
    inside = inside if isinstance(inside, list) else [inside]
    for child in ast.iter_child_nodes(node):
        name = getattr(node, "name", "lambda") if child in inside else None
        yield from uses(child, function or name)
    yield from ((function, name) for name in names(node) if is_private(name))


def test_none_at_import_and_few_later():
    found = {
        (path.relative_to(HELPERS).as_posix(), function)
        for path in HELPERS.rglob("*.py")
        for function, _ in uses(ast.parse(path.read_text()))
    }
    assert found == LATER.keys()


SOURCES = {
    "from torch.nn.modules.batchnorm import _BatchNorm": None,
    "class A(torch._C._FunctionBase): ...": None,
    "class A:\n    @torch._dynamo.disable\n    def f(self): ...": None,
    "def f(x=apply.__func__.__code__): ...": None,
    "class A:\n    def f(self):\n        def g(): return torch._C\n        return g": "f",
    "run = lambda x: torch._foreach_add(x)": "lambda",
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_private_name_is_found(source):
    assert SOURCES[source] in {each for each, _ in uses(ast.parse(source))}


@pytest.mark.parametrize("name", ["cnn", "embedding", "tied weight"])
def test_without_them_the_record_is_the_same(name, monkeypatch):
    def compute():
        case = zoo.make(name)
        out = empty_out(case)
        gradients.func_gradients(*case.args, out=out)
        return norms.gradient_norms(*case.args), out

    expected = compute()
    for module in ("torch._C._functorch", "torch._functorch.pyfunctorch"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            torch.testing.assert_close(compute(), expected, rtol=0, atol=0)
