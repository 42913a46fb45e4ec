"""Private names of torch: none when the helpers are imported, and what happens without each."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers import gradients, norms
from helpers.limits import diagnose
from helpers.transforms.fallback import FallbackWarning
from tests.support import wild, zoo
from tests.support.ways import empty_out

HELPERS = Path(__file__).parents[1] / "helpers"
LATER = {
    ("layers/recorder.py", "_passed_on"): "test_without_them_the_record_is_the_same",
    ("benchmark.py", "_each_operation"): "what torch's notes on extending name; measures alone",
    ("exercises/alone.py", "alone"): "a documented part of functions in Python, not in torch",
    # These are about what they import.
    ("study/peers/expanded_weights.py", "build"): "absent",
}
"""Where a function uses private names when it runs, and the test, or the reason, that lets it."""
ON_OBJECTS = {
    "_backward_hooks": "test_without_it_the_loop_is_taken",
    "_debug_flush_compilation_cache": "test_without_it_the_loop_is_taken",
    "_version": "test_without_it_nothing_is_returned",
    "_post_accumulate_grad_hooks": "test_without_it_nothing_is_returned",
    "_parameters": "torch itself does not run without it",
    "_buffers": "torch itself does not run without it",
    "_backward_pre_hooks": "torch itself does not run without it",
}
"""Private attributes of what torch has made, and the test, or the reason, that lets them be."""
OF_PYTHON = {"_fields", "_getframe", "_exit"}


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


def own(tree: ast.AST) -> set[str]:
    """Return the names that code defines or sets, as functions, classes and attributes."""
    stored = (node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store))
    named = (node for node in ast.walk(tree) if hasattr(node, "name"))
    return {getattr(node, "attr", None) or getattr(node, "id", None) for node in stored} | {
        node.name for node in named
    }


def on_objects(tree: ast.AST) -> set[str]:
    """Return the private attributes that are read of objects, also by `getattr` and `hasattr`."""
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            found |= {each.value for each in node.args[1:2] if isinstance(each, ast.Constant)}
    return {name for name in found if name.startswith("_") and not name.endswith("_")} - OF_PYTHON


def test_none_at_import_and_few_later():
    code = {path: ast.parse(path.read_text()) for path in HELPERS.rglob("*.py")}
    found = {
        (path.relative_to(HELPERS).as_posix(), function)
        for path, tree in code.items()
        for function, _ in uses(tree)
    }
    assert found == LATER.keys()
    found = set().union(*map(on_objects, code.values())) - set().union(*map(own, code.values()))
    assert found == ON_OBJECTS.keys()


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


@pytest.mark.parametrize(
    "source", ["function._cache()", "getattr(x, '_cache')", "hasattr(x, '_cache')"]
)
def test_a_private_attribute_is_found(source):
    assert on_objects(ast.parse(source)) == {"_cache"}
    assert own(ast.parse("class A:\n    def _cache(self): self._x: int = 1")) >= {"_cache", "_x"}


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


class Gone:
    """An attribute that is there no more."""

    def __get__(self, instance, owner=None):
        raise AttributeError("it has gone")

    __set__ = __get__


def hooked():
    case = zoo.make("linear")
    case.model.weight.register_hook(lambda gradient: 2 * gradient)
    return case


def scripted():
    return wild.make("scripted function of a closure")


@pytest.mark.parametrize(
    ("make", "place", "name"),
    [
        (hooked, torch.Tensor, "_backward_hooks"),
        (scripted, torch.jit.ScriptFunction, "_debug_flush_compilation_cache"),
    ],
)
def test_without_it_the_loop_is_taken(make, place, name, monkeypatch):
    case = make()
    expected = gradients.loop_gradients(*case.args)
    monkeypatch.setattr(place, name, Gone(), raising=False)
    for out in (None, empty_out(case)):
        with pytest.warns(FallbackWarning):
            found = gradients.func_gradients(*case.args, out=out)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("_version", gradients.func_gradients),
        ("_version", gradients.loop_gradients),
        ("_version", norms.gradient_norms),
        ("_version", diagnose),
        ("_post_accumulate_grad_hooks", diagnose),
    ],
)
def test_without_it_nothing_is_returned(name, function, monkeypatch):
    """No public name tells of a write, or of such a hook."""
    monkeypatch.setattr(torch.Tensor, name, Gone(), raising=False)
    with pytest.raises(AttributeError, match="it has gone"):
        function(*zoo.make("linear").args)
