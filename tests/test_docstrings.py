"""The examples in docstrings run, and show what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [file for file in sorted(ROOT.glob("helpers/**/*.py")) if ">>> " in file.read_text()]
MODULES = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES]


@pytest.mark.parametrize("name", [name.removesuffix(".__init__") for name in MODULES])
def test_the_examples_hold(name):
    tests = doctest.DocTestFinder(exclude_empty=True).find(import_module(name))
    assert any(test.examples for test in tests)
    for test in tests:
        said: list[str] = []
        failed, _ = doctest.DocTestRunner().run(test, out=said.append)
        assert not failed, "".join(said)
