"""The examples in docstrings run, and show what they say."""

import doctest

import pytest

from helpers import curvature, gradients, jacobians, noise, norms, privacy, projection
from helpers.limits.diagnosis import findings
from helpers.privacy import accounting

SHOWN = {
    gradients: ["func_gradients"],
    jacobians: ["func_jacobians"],
    noise: ["noise_scale"],
    curvature: ["fisher_product", "gauss_newton_product", "empirical_fisher_product", "matrix"],
    norms: ["gradient_norms", "clipped_sum"],
    privacy: ["private_sum"],
    accounting: ["epsilon", "noise_multiplier_for"],
    projection: ["project_batches"],
    findings: ["diagnose"],
}


@pytest.mark.parametrize("module", SHOWN, ids=lambda module: module.__name__)
def test_the_examples_hold(module):
    found = doctest.DocTestFinder(exclude_empty=True).find(module)
    shown = {test.name.rpartition(".")[2]: test for test in found if test.examples}
    assert set(SHOWN[module]) <= set(shown)
    for test in shown.values():
        said: list[str] = []
        failed, _ = doctest.DocTestRunner().run(test, out=said.append)
        assert not failed, "".join(said)
