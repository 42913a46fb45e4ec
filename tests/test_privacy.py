"""Private training: the distributions of batches and noise, what a sample adds, guarantees.

A statistical test fails by chance, for a seed taken at random, with a probability of at most
`CHANCE`; the seeds are fixed, so that a right implementation passes always.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from helpers import norms, privacy

CHANCE = 1e-3
NO_NOISE = {"noise_multiplier": 0}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plausible(statistic: float, distribution: object) -> bool:
    """Return whether a statistic is where its distribution has all but `CHANCE` of its mass."""
    return CHANCE / 2 < distribution.cdf(statistic) < 1 - CHANCE / 2


def small(count: int = 12) -> tuple[nn.Module, object, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    data, targets = torch.randn(12, 5).double(), torch.randint(3, (12,))
    return model, F.cross_entropy, data[:count], targets[:count]


def variance_ratio(values: torch.Tensor, mean: float, variance: float) -> float:
    """Sum squared deviations in units of the variance: chi-squared with `len(values)` degrees."""
    return ((values - mean).square().sum() / variance).item()


def test_samples_and_steps_are_drawn_with_the_rate_without_regard_to_each_other():
    steps, n, rate = 2000, 300, 0.1
    table = torch.zeros(steps, n)
    batches, again = (list(privacy.poisson_batches(n, rate, steps, seeded(1))) for _ in range(2))
    assert all(map(torch.equal, batches, again))
    for row, batch in zip(table, batches, strict=True):
        row[batch] = 1
    ratio = variance_ratio(table.sum(0), steps * rate, steps * rate * (1 - rate))
    assert plausible(ratio, stats.chi2(n))
    assert plausible(table.sum().item(), stats.binom(table.numel(), rate))
    # Sizes have the variance of a binomial; of batches of one size they would have none.
    ratio = variance_ratio(table.sum(1), n * rate, n * rate * (1 - rate))
    assert plausible(ratio, stats.chi2(steps))
    # In an epoch of shuffled batches, two successive ones would have no sample in common.
    both = (table[:-1:2] * table[1::2]).sum().item()
    assert plausible(both, stats.binom(table[1::2].numel(), rate**2))


@pytest.mark.parametrize("count", [12, 0])
def test_noise_has_its_variance_however_many_chunks_and_samples(count):
    given, generator = small(count), seeded(2)
    plain, rows = norms.clipped_sum(*given, 0.5), []
    for _ in range(40):
        options = {"limit": 0.5, "noise_multiplier": 3.0, "generator": generator}
        total = privacy.private_sum(*given, **options, chunk_size=5)
        rows.append(torch.cat([(total[name] - plain[name]).flatten() for name in plain]))
    noise = torch.stack(rows) / 1.5
    assert plausible(variance_ratio(noise.flatten(), 0.0, 1.0), stats.chi2(noise.numel()))
    assert stats.kstest(noise.flatten(), "norm").pvalue > CHANCE
    products = (noise[:-1:2] * noise[1::2]).flatten()  # of independent steps
    assert plausible(products.sum().item() / len(products) ** 0.5, stats.norm())


def test_the_sum_is_clipped_with_dropout():
    model, *rest = small()
    args, sums = (nn.Sequential(nn.Dropout(), model), *rest), []
    for function, options in ((norms.clipped_sum, {}), (privacy.private_sum, NO_NOISE)):
        torch.manual_seed(0)
        sums.append(function(*args, limit=0.5, randomness="different", **options))
    torch.testing.assert_close(*sums, rtol=0, atol=0)


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
    model, loss_fn, data, targets = small()
    model = change(model) if change else model
    data = data.to(next(model.parameters()).dtype)
    options = {"limit": 1.0, "noise_multiplier": 1.0, **options}
    with pytest.raises(ValueError, match=word):
        privacy.private_sum(model, loss_fn, data, targets, **options)


def inner_product(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient at the outputs is the target."""
    return (outputs * targets).sum()


def added(model: nn.Module, *batch: torch.Tensor, limit: float, **options: object) -> torch.Tensor:
    total = norms.clipped_sum(model, inner_product, *batch, limit, **options)
    return torch.cat([each.double().flatten() for each in total.values()])


def cancelling(size: int) -> torch.Tensor:
    """Sequences of three positions, whose gradients nearly cancel: norms are the least exact."""
    tokens, signs = torch.randn(size, 1, 40), torch.randn(size, 3, 1)
    signs[:, 0] = -0.85 * signs[:, 1:].sum(1)
    return tokens * signs


KINDS = {
    "sequence": (lambda: nn.Linear(40, 50, bias=False), cancelling, (3, 50)),
    "convolution": (lambda: nn.Conv2d(3, 6, 3), lambda n: torch.randn(n, 3, 8, 8), (6, 6, 6)),
    "embedding": (lambda: nn.Embedding(50, 16), lambda n: torch.randint(50, (n, 5)), (5, 16)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_no_sample_moves_the_sum_by_more_than_the_limit(kind, dtype):
    build, draw, shape = KINDS[kind]
    for seed in range(10):
        torch.manual_seed(seed)
        model, data, targets = build().to(dtype), draw(16), torch.randn(16, *shape).to(dtype)
        data = data.to(dtype) if data.is_floating_point() else data
        limit = norms.gradient_norms(model, inner_product, data, targets).min().item() / 3
        each = [added(model, data[i:][:1], targets[i:][:1], limit=limit) for i in range(16)]
        whole, less = (added(model, data[i:], targets[i:], limit=limit) for i in (0, 1))
        assert max(moved.norm() for moved in (*each, whole - less)) <= limit
        assert min(row.norm() for row in each) > 0.9999 * limit


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
    model = nn.Linear(1, 1, bias=False)
    data, slopes = torch.tensor([[2.0 * limit], [x]]), torch.tensor([[1.0], [slope]])
    assert abs(added(model, data[1:], slopes[1:], limit=limit).item()) <= limit
    total = added(model, data, slopes, limit=limit).item()  # beside an ordinary one
    assert total == pytest.approx(limit + adds, rel=1e-5)


def test_what_is_masked_adds_nothing():
    model, loss_fn, data, targets = small()
    mask = torch.arange(12) % 3 > 0
    data[~mask] = math.nan
    options = {"limit": 0.5, "noise_multiplier": 1.0, "chunk_size": 5}
    got, right = (
        privacy.private_sum(model, loss_fn, *batch, **each, **options, generator=seeded(0))
        for *batch, each in ((data, targets, {"mask": mask}), (data[mask], targets[mask], {}))
    )
    torch.testing.assert_close(got, right, rtol=0, atol=0)


@pytest.mark.parametrize("accountant", privacy.ACCOUNTANTS)
@pytest.mark.parametrize(("target", "rest"), [(0.5, (1.0, 50)), (2.0, (0.05, 200))])
def test_the_noise_for_an_epsilon_is_the_smallest_that_does(accountant, target, rest):
    noise = privacy.noise_multiplier_for(target, *rest, 1e-5, accountant=accountant)
    spent = privacy.epsilon(noise, *rest, 1e-5, accountant=accountant)
    assert spent <= target, f"noise_multiplier_for gave {noise}, which spends {spent}"
    assert privacy.epsilon(noise * 0.999, *rest, 1e-5, accountant=accountant) > target
    assert privacy.epsilon(0.0, *rest, 1e-5, accountant=accountant) == math.inf


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
    with pytest.raises(ValueError, match=word):
        call(first, **{"rate": 0.1, "steps": 10, "delta": 1e-5, **changed})


def test_a_delta_that_promises_nothing_is_warned_of():
    with pytest.warns(UserWarning, match="delta") as caught:
        privacy.epsilon(2.0, 0.01, 10, 0.02)
    assert [warning.filename for warning in caught] == [__file__]
