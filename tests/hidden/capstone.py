"""Hidden tests of the capstone, an example: is a mended `capstone.py` what it claims to be?

`SCRIPT=anna.py .venv/bin/python -m pytest tests/hidden/capstone.py` tries a script. It runs as you:
for a stranger's, in a container.
"""

import os
import runpy

import pytest
import torch
from opacus.accountants import RDPAccountant
from torch.func import functional_call
from torch.nn import functional as F


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(os.environ["SCRIPT"])


@pytest.fixture
def case(script):
    """Make a model, nine samples, and a stream of random numbers."""
    torch.manual_seed(1)
    model = script["build_model"]()
    images, labels = torch.rand(9, 64), torch.arange(9)
    return model, images, labels, torch.Generator().manual_seed(2)


def step(script, case, limit=0.5, noise=0.0, lot=20, rows=slice(None)):
    model, images, labels, generator = case
    private = script["private_gradient"]
    return private(model, images[rows], labels[rows], limit, noise, lot, generator)


def test_samples_do_not_meet(case):
    model, images, *_ = case
    model.train()
    torch.testing.assert_close(model(images)[:1], model(torch.cat([images[:1], images[5:7]]))[:1])


def test_gradient_is_clipped_over_all_parameters(script, case):
    model, images, labels, _ = case
    model.eval()
    params = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    for index in range(9):  # one sample: whatever else is wrong, this is its clipped gradient
        loss = F.cross_entropy(
            functional_call(model, params, (images[index : index + 1],)),
            labels[index : index + 1],
        )
        each = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(params.values()))])
        got = step(script, case, lot=1, rows=slice(index, index + 1))
        got = torch.cat([g.flatten() for g in got.values()])
        wanted = each * (0.5 / each.norm()).clamp(max=1)
        torch.testing.assert_close(got.norm(), wanted.norm(), rtol=1e-4, atol=1e-5)


def test_sum_is_divided_by_the_expected_size(script, case):
    small, large = step(script, case, lot=20), step(script, case, lot=40)
    for name, each in small.items():
        torch.testing.assert_close(each, 2 * large[name])
    assert all(not each.any() for each in step(script, case, rows=slice(0)).values())


def noise_of(script, case, limit):
    """Return the noise of one step, in units of what the accountant assumes."""
    got = step(script, case, limit=limit, noise=3.0, lot=10, rows=slice(0))
    return torch.cat([each.flatten() for each in got.values()]) * 10 / 3.0


def test_noise_is_that_of_the_limit(script, case):
    ratio = noise_of(script, case, limit=8.0).std() / noise_of(script, case, limit=2.0).std()
    assert 3.5 < ratio < 4.5


def test_each_step_has_noise_of_its_own(script, case):
    first, second = (noise_of(script, case, limit=2.0) for _ in range(2))
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 0.2


def test_batches_are_poisson_samples(script):
    generator = torch.Generator().manual_seed(3)
    batches = list(script["draw_batches"](200, 0.1, 400, generator))
    sizes = torch.tensor([len(each) for each in batches], dtype=torch.float64)
    assert len(batches) == 400
    assert 19 < sizes.mean() < 21
    assert 14 < sizes.var() < 23  # 18; 0 if the size is fixed
    assert all(len(each.unique()) == len(each) for each in batches)


def test_epsilon_counts_all_steps(script):
    *_, claimed = script["train"](epochs=2, lot=140, noise_multiplier=1.5)
    accountant = RDPAccountant()
    accountant.history = [(1.5, 0.1, 20)]
    assert claimed == pytest.approx(accountant.get_epsilon(1e-5), rel=0.05)
