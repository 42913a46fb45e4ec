"""Hidden tests of the capstone, an example: is a mended `capstone.py` what it claims to be?

`SCRIPT=anna.py .venv/bin/python -m pytest tests/lessons/hidden/capstone.py` tries a script. It runs
as you: for a stranger's, in a container.
"""

import inspect
import itertools
import os
import runpy

import pytest
import torch
from opacus.accountants import RDPAccountant
from torch.nn import functional as F


@pytest.fixture(scope="module")
def script():
    path = os.environ.get("SCRIPT", "")
    if not os.path.isfile(path):
        pytest.exit(f"SCRIPT={path!r} is no file: give the script that is tried", 2)
    return runpy.run_path(path)


@pytest.fixture
def case(script):
    """Make a model, nine samples, and a stream of random numbers."""
    torch.manual_seed(1)
    model = script["build_model"]()
    images, labels = torch.rand(9, 64), torch.arange(9)
    return model, images, labels, torch.Generator().manual_seed(2)


def step(script, case, limit=0.5, noise=0.0, lot=9, count=9):
    """Compute the private gradient of the first samples."""
    model, images, labels, generator = case
    private = script["private_gradient"]
    return private(model, images[:count], labels[:count], limit, noise, lot, generator)


def noise_of(script, case, limit=2.0, noise=3.0, count=9):
    """Return the noise of one step, {name: shape}: what is more than without noise."""
    model, *_ = case
    model.eval()
    with_noise = step(script, case, limit, noise, count=count)
    without = step(script, case, limit, 0.0, count=count)
    return {name: with_noise[name] - without[name] for name in without}


def flat(tensors):
    return torch.cat([each.flatten() for each in tensors.values()])


def deviation(tensors):
    return flat(tensors).std()


def test_samples_do_not_meet(script, case):
    model, images, _, _ = case
    step(script, case)  # may change the mode
    among_nine = model(images)[:1]
    among_three = model(torch.cat([images[:1], images[5:7]]))[:1]
    torch.testing.assert_close(among_nine, among_three)


def test_gradient_is_clipped_over_all_parameters(script, case):
    model, images, labels, _ = case
    model.eval()
    grads, norms = [], []
    for image, label in zip(images, labels, strict=True):
        model.zero_grad()
        F.cross_entropy(model(image[None]), label[None]).backward()
        of_sample = {name: p.grad.clone() for name, p in model.named_parameters()}
        grads.append(of_sample)
        norms.append(flat(of_sample).norm().item())
    model.zero_grad()
    # A limit that clips some of the samples, and one that clips all.
    for limit in (sorted(norms)[4], min(norms) / 3):
        expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for of_sample, norm in zip(grads, norms, strict=True):
            factor = min(1.0, limit / norm)
            for name, grad in of_sample.items():
                expected[name] += factor * grad / 9
        got = step(script, case, limit)
        for name, grad in expected.items():
            torch.testing.assert_close(got[name], grad, rtol=1e-3, atol=1e-5)


def test_sum_is_divided_by_the_expected_size(script, case):
    model, *_ = case
    model.eval()
    small, large = step(script, case, lot=20), step(script, case, lot=40)
    for name, each in small.items():
        torch.testing.assert_close(each, 2 * large[name])
    assert not flat(step(script, case, count=0)).any()
    # The noise is that of a lot, whatever was drawn.
    all_nine = deviation(noise_of(script, case))
    for count in (3, 0):
        assert 0.9 < deviation(noise_of(script, case, count=count)) / all_nine < 1.1


def test_noise_is_that_of_the_limit(script, case):
    for limit, noise in ((2.0, 3.0), (8.0, 3.0), (2.0, 0.7)):
        got = noise_of(script, case, limit, noise)
        expected = limit * noise / 9
        assert 0.9 < deviation(got) / expected < 1.1
        for each in got.values():  # of few numbers, some
            assert 0.4 < each.std() / expected < 1.8


def test_each_step_has_noise_of_its_own(script, case):
    first = noise_of(script, case)
    second = noise_of(script, case)
    correlation = torch.corrcoef(torch.stack([flat(first), flat(second)]))[0, 1]
    assert abs(correlation) < 0.2
    # Nor do two parameters share it.
    begins = [each.flatten()[:10] for each in first.values()]
    for one, other in itertools.combinations(begins, 2):
        assert not torch.allclose(one, other, atol=1e-3)


def indices(batch):
    """Take a batch by its indices or by a mask."""
    batch = torch.as_tensor(batch)
    return batch.nonzero()[:, 0] if batch.dtype == torch.bool else batch.flatten()


def test_batches_are_poisson_samples(script):
    generator = torch.Generator().manual_seed(3)
    table = torch.zeros(400, 200, dtype=torch.float64)  # how often a step draws a sample
    number = 0
    for batch in script["draw_batches"](200, 0.1, 400, generator):
        for index in indices(batch).tolist():
            table[number, index] += 1
        number += 1
    assert number == 400
    assert table.max() == 1
    sizes = table.sum(dim=1)
    assert 19 < sizes.mean() < 21
    assert 14 < sizes.var() < 23  # 18; 0 if the size is fixed
    drawn = table.sum(dim=0)
    assert 10 < drawn.min() <= drawn.max() < 70  # 40 each
    shared = (table[:-1] * table[1:]).sum(dim=1)  # by two successive steps
    assert 1.7 < shared.mean() < 2.3  # 2


def test_training_is_made_of_these_parts(script, monkeypatch):
    inside = script["train"].__globals__
    draw, private = inside["draw_batches"], inside["private_gradient"]
    drawn, calls = [], []

    def drawing(*args, **options):
        for batch in draw(*args, **options):
            drawn.append(len(indices(batch)))
            yield batch

    def stepping(*args, **options):
        given = inspect.signature(private).bind(*args, **options)
        calls.append(list(given.arguments.values()))
        return private(*args, **options)

    monkeypatch.setitem(inside, "draw_batches", drawing)
    monkeypatch.setitem(inside, "private_gradient", stepping)
    script["train"](epochs=2, lot=140, limit=1.5, noise_multiplier=1.25)
    assert len(calls) == 20
    for size, (_, images, _, limit, noise, lot, *_) in zip(drawn, calls, strict=True):
        assert len(images) == size
        assert (limit, noise, lot) == (1.5, 1.25, 140)


@pytest.mark.parametrize(("epochs", "lot", "noise"), [(2, 140, 1.5), (1, 70, 1.0)])
def test_epsilon_counts_all_steps(epochs, lot, noise, script):
    *_, claimed = script["train"](epochs=epochs, lot=lot, noise_multiplier=noise)
    accountant = RDPAccountant()
    accountant.history = [(noise, lot / 1400, epochs * 1400 // lot)]
    assert 0.85 < claimed / accountant.get_epsilon(1e-5) < 1.05  # PRV is tighter
