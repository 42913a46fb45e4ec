"""Private training: the distributions of batches and noise, what a sample adds, guarantees.

A statistical test fails by chance, for a seed taken at random, with a probability of at most
`CHANCE`; the seeds are fixed, so that a right implementation passes always.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from helpers import norms, privacy
from tests.support.zoo import Case

CHANCE = 1e-3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plausible(statistic: float, distribution: object) -> bool:
    """Return whether a statistic is where its distribution has all but `CHANCE` of its mass."""
    return CHANCE / 2 < distribution.cdf(statistic) < 1 - CHANCE / 2


def small(count: int = 12) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    data, targets = torch.randn(12, 5).double(), torch.randint(3, (12,))
    return Case(model, data[:count], targets[:count], F.cross_entropy)


def private_sum(
    case: Case, limit: float, noise_multiplier: float, **options: object
) -> dict[str, Tensor]:
    own = {"limit": limit, "noise_multiplier": noise_multiplier}
    return case.pass_to(privacy.private_sum, **own, **options)


def variance_ratio(values: Tensor, mean: float, variance: float) -> float:
    """Sum squared deviations in units of the variance: chi-squared with `len(values)` degrees."""
    return ((values - mean).square().sum() / variance).item()


def test_samples_and_steps_are_drawn_with_the_rate_without_regard_to_each_other():
    steps, n, rate = 2000, 300, 0.1
    batches = list(privacy.poisson_batches(n, rate, steps, seeded(1)))
    again = list(privacy.poisson_batches(n, rate, steps, seeded(1)))
    assert all(map(torch.equal, batches, again))
    table = torch.zeros(steps, n)  # 1 where a step draws a sample
    for row, batch in zip(table, batches, strict=True):
        row[batch] = 1
    assert plausible(table.sum().item(), stats.binom(table.numel(), rate))
    # Each sample is drawn as often as by a coin of its own.
    ratio = variance_ratio(table.sum(0), steps * rate, steps * rate * (1 - rate))
    assert plausible(ratio, stats.chi2(n))
    # Sizes have the variance of a binomial; of batches of one size they would have none.
    ratio = variance_ratio(table.sum(1), n * rate, n * rate * (1 - rate))
    assert plausible(ratio, stats.chi2(steps))
    # In an epoch of shuffled batches, two successive ones would have no sample in common.
    both = (table[:-1:2] * table[1::2]).sum().item()
    assert plausible(both, stats.binom(table[1::2].numel(), rate**2))


@pytest.mark.parametrize("count", [12, 0])
def test_noise_has_its_variance_however_many_chunks_and_samples(count):
    case, generator = small(count), seeded(2)
    limit, multiplier = 0.5, 3.0
    plain = case.pass_to(norms.clipped_sum, limit)
    steps = []
    for _ in range(40):
        total = private_sum(case, limit, multiplier, generator=generator, chunk_size=5)
        steps.append(torch.cat([(total[name] - plain[name]).flatten() for name in plain]))
    noise = torch.stack(steps) / (limit * multiplier)
    assert plausible(variance_ratio(noise.flatten(), 0.0, 1.0), stats.chi2(noise.numel()))
    assert stats.kstest(noise.flatten(), "norm").pvalue > CHANCE
    # Two steps are independent: their products have mean 0 and variance 1.
    products = (noise[:-1:2] * noise[1::2]).flatten()
    assert plausible(products.sum().item() / len(products) ** 0.5, stats.norm())


def test_the_sum_is_clipped_with_dropout():
    case = small()
    case.model = nn.Sequential(nn.Dropout(), case.model)
    torch.manual_seed(0)
    plain = case.pass_to(norms.clipped_sum, 0.5, randomness="different")
    torch.manual_seed(0)
    without_noise = private_sum(case, 0.5, 0.0, randomness="different")
    torch.testing.assert_close(without_noise, plain, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize(
    ("change", "options", "word"),
    [
        (None, {"noise_multiplier": -1}, "noise_multiplier"),
        (None, {"mask": torch.ones(12)}, "mask"),
        (None, {"limit": 1e-300}, "too small"),
        (lambda m: nn.Sequential(m, nn.BatchNorm1d(3).double()), {}, "BatchNorm"),
        (lambda m: m.to("meta"), {"generator": seeded(0)}, "generator"),
        (lambda m: m.to(torch.complex128), {}, "complex"),
    ],
)
def test_what_the_sum_refuses(change, options, word):
    case = small()
    if change:
        case.model = change(case.model)
        case.data = case.data.to(next(case.model.parameters()).dtype)
    right = {"limit": 1.0, "noise_multiplier": 1.0}
    with pytest.raises(ValueError, match=word):
        case.pass_to(privacy.private_sum, **(right | options))


def inner_product(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient at the outputs is the target."""
    return (outputs * targets).sum()


def clipped(model: nn.Module, data: Tensor, targets: Tensor, limit: float) -> Tensor:
    """Return the clipped sum as one vector."""
    total = norms.clipped_sum(model, inner_product, data, targets, limit)
    return torch.cat([each.double().flatten() for each in total.values()])


def cancelling(size: int) -> Tensor:
    """Sequences of three positions, whose gradients nearly cancel: norms are the least exact."""
    tokens = torch.randn(size, 1, 40)
    signs = torch.randn(size, 3, 1)
    signs[:, 0] = -0.85 * signs[:, 1:].sum(1)
    return tokens * signs  # (B, 3, 40)


# What builds a layer, what draws inputs, and the shape of one output.
KINDS = {
    "sequence": (lambda: nn.Linear(40, 50, bias=False), cancelling, (3, 50)),
    "convolution": (
        lambda: nn.Conv2d(3, 6, 3),
        lambda size: torch.randn(size, 3, 8, 8),
        (6, 6, 6),
    ),
    "embedding": (
        lambda: nn.Embedding(50, 16),
        lambda size: torch.randint(50, (size, 5)),
        (5, 16),
    ),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_no_sample_moves_the_sum_by_more_than_the_limit(kind, dtype):
    build, draw, shape = KINDS[kind]
    for seed in range(10):
        torch.manual_seed(seed)
        model, data = build().to(dtype), draw(16)
        targets = torch.randn(16, *shape).to(dtype)
        if data.is_floating_point():
            data = data.to(dtype)
        # Less than any norm, so that each sample is scaled to the limit.
        limit = norms.gradient_norms(model, inner_product, data, targets).min().item() / 3
        for i in range(16):
            alone = clipped(model, data[i : i + 1], targets[i : i + 1], limit)
            assert 0.9999 * limit < alone.norm() <= limit
        everyone = clipped(model, data, targets, limit)
        without_the_first = clipped(model, data[1:], targets[1:], limit)
        assert (everyone - without_the_first).norm() <= limit


@pytest.mark.parametrize(
    ("x", "slope", "limit", "adds"),
    [
        (math.nan, 1, 1, 0),
        (1e30, 1e30, 1, 0),  # the gradient itself is infinite
        (1e25, 1, 1, 1),
        (1, 1e-25, 1e-26, 1e-26),
        (1e-22, 1e18, 1e-6, 1e-6),  # the square of one side alone vanishes
        (0, 1e30, 1, 0),
    ],
)
def test_a_gradient_of_any_size_is_clipped_and_none_that_is_not_finite_adds(x, slope, limit, adds):
    """The gradient of a sample is `x * slope`; beside it is an ordinary one, which adds `limit`."""
    model = nn.Linear(1, 1, bias=False)
    data = torch.tensor([[2.0 * limit], [x]])
    slopes = torch.tensor([[1.0], [slope]])
    alone = clipped(model, data[1:], slopes[1:], limit)
    assert abs(alone.item()) <= limit
    both = clipped(model, data, slopes, limit)
    assert both.item() == pytest.approx(limit + adds, rel=1e-5)


def test_what_is_masked_adds_nothing():
    case = small()
    mask = torch.arange(12) % 3 > 0
    case.data[~mask] = math.nan
    there = Case(case.model, case.data[mask], case.targets[mask], case.loss_fn)
    got = private_sum(case, 0.5, 1.0, generator=seeded(0), mask=mask, chunk_size=5)
    expected = private_sum(there, 0.5, 1.0, generator=seeded(0), chunk_size=5)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("accountant", privacy.ACCOUNTANTS)
@pytest.mark.parametrize(("target", "rate", "steps"), [(0.5, 1.0, 50), (2.0, 0.05, 200)])
def test_the_noise_for_an_epsilon_is_the_smallest_that_does(accountant, target, rate, steps):
    def spent(noise: float) -> float:
        return privacy.epsilon(noise, rate, steps, 1e-5, accountant=accountant)

    noise = privacy.noise_multiplier_for(target, rate, steps, 1e-5, accountant=accountant)
    assert spent(noise) <= target, f"noise_multiplier_for gave {noise}"
    assert spent(noise * 0.999) > target
    assert spent(0.0) == math.inf


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("call", "first", "changed", "word"),
    [
        (privacy.epsilon, 1, {"rate": 10.0}, "rate"),
        (privacy.epsilon, 1, {"steps": 1.5}, "steps"),
        (privacy.epsilon, 1, {"delta": 0.0}, "delta"),
        (privacy.epsilon, 0.01, {"accountant": "prv"}, "be slow"),
        (privacy.noise_multiplier_for, 1e4, {"accountant": "prv"}, "be slow"),
        (privacy.noise_multiplier_for, 0.05, {}, "promises"),
        (privacy.noise_multiplier_for, 0.005, {"accountant": "prv"}, "promises"),
    ],
)
def test_what_accountants_refuse_at_once(call, first, changed, word):
    right = {"rate": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(ValueError, match=word):
        call(first, **(right | changed))


def test_a_delta_that_promises_nothing_is_warned_of():
    with pytest.warns(UserWarning, match="delta") as caught:
        privacy.epsilon(2.0, 0.01, 10, 0.02)
    assert [warning.filename for warning in caught] == [__file__]
