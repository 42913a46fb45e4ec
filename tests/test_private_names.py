"""What helpers set of torch: nothing. And its private names: none at import, and without each."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers import gradients, norms
from helpers.limits import diagnose
from helpers.transforms.fallback import FallbackWarning
from tests.support import zoo
from tests.support.ways import empty_out

HELPERS = Path(__file__).parents[1] / "helpers"
LATER = {
    ("transforms/samples.py", "standing_in"): "test_without_it_the_loop_is_taken",
    ("layers/recorder.py", "_passed_on"): "test_without_them_gradients_are_formed",
    ("benchmark.py", "each_operation"): "what torch's notes on extending name; measures alone",
    ("limits/bare.py", "_noting_fallbacks"): "for what is slow, and in `diagnose` alone",
    ("transforms/known_wrong.py", "_named_by"): "a documented part of functions, not in torch",
    # These are about what they import.
    ("study/peers.py", "expanded_weights"): "absent",
}
"""Where a function uses private names when it runs, and the test, or the reason, that lets it."""
ON_OBJECTS = {
    "_backward_hooks": "test_without_it_the_loop_is_taken",
    "_cache_enabled": "without it, a cache around a call is not refused",
    "_torchdynamo_orig_callable": "without it, what is compiled is refused where it is traced",
    "_version": "test_without_it_nothing_is_returned",
    "_post_accumulate_grad_hooks": "test_without_it_nothing_is_returned",
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
def test_without_them_gradients_are_formed(name, monkeypatch):
    def compute():
        case = zoo.make(name)
        out = empty_out(case)
        gradients.func_gradients(*case.args, out=out)
        return norms.gradient_norms(*case.args), out

    expected = compute()
    for module in ("torch._C._functorch", "torch._functorch.pyfunctorch"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.warns(FallbackWarning, match="cannot be recorded"):
                found = compute()
        torch.testing.assert_close(found, expected)


class Gone:
    """An attribute that is there no more."""

    def __get__(self, instance, owner=None):
        raise AttributeError("it has gone")

    __set__ = __get__


def hooked():
    case = zoo.make("linear")
    case.model.weight.register_hook(lambda gradient: 2 * gradient)
    return case


@pytest.mark.parametrize(
    ("make", "place", "name"),
    [
        (functools.partial(zoo.make, "linear"), torch._C, "_swap_tensor_impl"),
        (hooked, torch.Tensor, "_backward_hooks"),
    ],
)
def test_without_it_the_loop_is_taken(make, place, name, monkeypatch):
    case = make()
    expected = gradients.loop_gradients(*case.args)
    if isinstance(place, type):
        monkeypatch.setattr(place, name, Gone(), raising=False)
    else:
        monkeypatch.delattr(place, name)
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


SWITCHES = {
    "devices.py": {"allow_tf32"},  # for good, as its caller asks
    "transforms/switches.py": {"enabled"},  # under a lock, with a count
}
"""The attributes of torch that a file of helpers sets."""


def assigned(tree: ast.AST) -> set[str]:
    """Return what code sets or deletes on torch, its modules, its classes and what leads there."""
    known, found = set(), set()

    def is_torch(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):  # of others, the result is the caller's own
            reads = ast.unparse(node.func) in ("vars", "type", "getattr")
            return reads and is_torch(node.args[0])
        if isinstance(node, ast.Name):
            return node.id in known
        return any(map(is_torch, ast.iter_child_nodes(node)))

    nodes = [*ast.walk(tree)] * 2  # the second time with the names of names
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            places = [(getattr(node, "module", None) or each.name, each) for each in node.names]
            known |= {n.asname or n.name.split(".")[0] for p, n in places if TORCH.match(p)}
        given = getattr(node, "value", getattr(node, "iter", None))
        if isinstance(node, ast.Assign | ast.For | ast.comprehension) and is_torch(given):
            for target in getattr(node, "targets", None) or [node.target]:
                parts = getattr(target, "elts", [target])
                known |= {part.id for part in parts if isinstance(part, ast.Name)}
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            own = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)  # a list
            if not own and is_torch(getattr(node, "value", ast.Pass())):
                found.add(getattr(node, "attr", "[]"))
        if isinstance(node, ast.Call) and node.args:
            sets = ast.unparse(node.func).rpartition(".")[2] in SETTERS
            named = TORCH.match(str(getattr(node.args[0], "value", "")))
            if sets and (named or is_torch(node.args[0])):
                found.add("setattr")
    return found


TORCH = re.compile(r"(torch|functorch)(\.|$)")
SETTERS = "setattr", "delattr", "__setattr__", "__delattr__", "patch", "object"
PLANTED = {
    "import torch.jit as j\nj.ScriptFunction.__call__ = print": {"__call__"},
    "from torch.nn import functional as F\nold = F\nsetattr(old, 'relu', None)": {"setattr"},
    "import torch\nfor b, _ in [(torch.backends.mkldnn, 1)]:\n b.enabled = 0": {"enabled"},
    "import torch\nb = getattr(torch, 'backends')\nb.x += 1\ndel b.y": {"x", "y"},
    "import torch\nw = torch.zeros(2)\nw.grad = None\nw[0] = torch.pi\nself.f = torch.sum": set(),
}


@pytest.mark.parametrize("source", PLANTED)
def test_an_assignment_to_torch_is_found(source):
    assert assigned(ast.parse(source)) == PLANTED[source]


def test_nothing_is_assigned_to_torch():
    found = {
        path.relative_to(HELPERS).as_posix(): assigned(ast.parse(path.read_text()))
        for path in HELPERS.rglob("*.py")
    }
    assert {path: names for path, names in found.items() if names} == SWITCHES
