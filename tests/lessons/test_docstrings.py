"""The examples in docstrings run, and show what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = []
for _file in sorted(ROOT.glob("helpers/**/*.py")):
    if ">>> " in _file.read_text("utf-8"):
        _parts = _file.relative_to(ROOT).with_suffix("").parts
        MODULES.append(".".join(_parts).removesuffix(".__init__"))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_hold(name):
    examples = 0
    for test in doctest.DocTestFinder(exclude_empty=True).find(import_module(name)):
        examples += len(test.examples)
        said: list[str] = []
        failed, _ = doctest.DocTestRunner().run(test, out=said.append)
        assert not failed, "".join(said)
    assert examples > 0
