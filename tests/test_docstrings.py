"""The examples in docstrings run, and show what they say."""

import doctest

import pytest

from helpers import curvature, gradients, jacobians, noise, norms, privacy
from helpers.limits import diagnosis
from helpers.privacy import accounting

MODULES = (
    accounting,
    curvature,
    diagnosis,
    gradients,
    jacobians,
    noise,
    norms,
    privacy,
)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_hold(module):
    tests = doctest.DocTestFinder(exclude_empty=True).find(module)
    assert any(test.examples for test in tests)
    for test in tests:
        said: list[str] = []
        failed, _ = doctest.DocTestRunner().run(test, out=said.append)
        assert not failed, "".join(said)
