"""Private training: the distributions of batches and noise, one step of Opacus, exact guarantees.

A statistical test fails by chance, for a seed taken at random, with a probability of at most
`CHANCE`; the seeds are fixed, so that a right implementation passes always.
"""

import copy
import math
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from scipy import optimize, stats
from torch import nn

from helpers import norms, privacy

CHANCE = 1e-3


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plausible(statistic: float, distribution: object) -> bool:
    """Return whether a statistic is where its distribution has all but `CHANCE` of its mass."""
    return CHANCE / 2 < distribution.cdf(statistic) < 1 - CHANCE / 2


def small(count: int = 12) -> tuple[nn.Module, object, torch.Tensor, torch.Tensor]:
    """Return a model, a loss, and samples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    data, targets = torch.randn(12, 5).double(), torch.randint(3, (12,))
    return model, F.cross_entropy, data[:count], targets[:count]


# Batches


@pytest.fixture(scope="module")
def drawn():
    """2,000 batches of 300 samples as a table of 0 and 1, and the rate."""
    table = torch.zeros(2000, 300)
    for row, batch in zip(table, privacy.poisson_batches(300, 0.1, 2000, seeded(1)), strict=True):
        assert batch.dtype == torch.int64
        row[batch] = 1
    return table, 0.1


def variance_ratio(values: torch.Tensor, mean: float, variance: float) -> float:
    """Sum squared deviations in units of the variance: chi-squared with `len(values)` degrees."""
    return ((values - mean).square().sum() / variance).item()


def test_samples_and_steps_are_drawn_with_the_rate_without_regard_to_each_other(drawn):
    table, rate = drawn
    steps, n = table.shape
    ratio = variance_ratio(table.sum(0), steps * rate, steps * rate * (1 - rate))
    assert plausible(ratio, stats.chi2(n))
    assert plausible(table.sum().item(), stats.binom(table.numel(), rate))
    # Sizes have the variance of a binomial; of batches of one size they would have none.
    ratio = variance_ratio(table.sum(1), n * rate, n * rate * (1 - rate))
    assert plausible(ratio, stats.chi2(steps))
    # In an epoch of shuffled batches, two successive ones would have no sample in common.
    both = (table[:-1:2] * table[1::2]).sum().item()
    assert plausible(both, stats.binom(table[1::2].numel(), rate**2))


def test_batches_follow_from_the_generator():
    first, again = (list(privacy.poisson_batches(50, 0.2, 5, seeded(3))) for _ in range(2))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1])
    assert all(torch.equal(batch, batch.sort().values) for batch in first)
    (all_of_them,) = privacy.poisson_batches(4, 1.0, 1, seeded(0))
    assert all_of_them.tolist() == [0, 1, 2, 3]
    assert 0 in {len(batch) for batch in privacy.poisson_batches(3, 0.1, 50, seeded(0))}


RATE = "rate must be above 0 and at most 1"
REFUSED = [((10, rate, 1), RATE) for rate in (0.0, -0.1, 1.1, math.nan, "0.1", True)]
REFUSED += [((0, 0.5, 1), "n must be a whole"), ((1, 0.5, 1.5), "steps must be a whole number")]


@pytest.mark.parametrize(("given", "what"), REFUSED)
def test_batches_that_cannot_be_drawn_are_refused_at_once(given, what):
    with pytest.raises(ValueError, match=what):
        privacy.poisson_batches(*given, seeded(0))


# The sum


def test_without_noise_it_is_the_clipped_sum():
    got = privacy.private_sum(*small(), limit=0.5, noise_multiplier=0)
    torch.testing.assert_close(got, norms.clipped_sum(*small(), 0.5), rtol=0, atol=0)


def noises(draws: int, count: int = 12, **options: object) -> torch.Tensor:
    """Draw the noise of private sums, all parameters in a row: `(draws, P)`."""
    given, generator = small(count), seeded(2)
    settings = {"limit": 0.5, "noise_multiplier": 3.0, "generator": generator, **options}
    plain = norms.clipped_sum(*given, 0.5)
    rows = []
    for _ in range(draws):
        total = privacy.private_sum(*given, **settings)
        rows.append(torch.cat([(total[name] - plain[name]).flatten() for name in plain]))
    return torch.stack(rows)


@pytest.mark.parametrize(("chunk_size", "count"), [(None, 12), (1, 12), (5, 12), (5, 0)])
def test_noise_has_its_variance_however_many_chunks_and_samples(chunk_size, count):
    noise = noises(40, count, chunk_size=chunk_size)
    ratio = variance_ratio(noise.flatten(), 0.0, 1.5**2)
    assert plausible(ratio, stats.chi2(noise.numel()))
    assert stats.kstest(noise.flatten() / 1.5, "norm").pvalue > CHANCE


def test_noise_of_steps_and_entries_is_independent():
    noise = noises(60) / 1.5
    for product in (noise[:-1:2] * noise[1::2], noise[:, :-1:2] * noise[:, 1::2]):
        # Of independent normals: mean 0, variance 1.
        z = product.sum().item() / product.numel() ** 0.5
        assert plausible(z, stats.norm())


@pytest.mark.parametrize("limit", [0.1, 0.7, 50.0])
def test_one_step_of_opacus(limit):
    """Opacus divides by the norm plus 1e-6; apart from that the two are equal."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model, loss_fn, data, targets = given = small()
    options = {"noise_multiplier": 1.3, "generator": seeded(4)}
    mine = privacy.private_sum(*given, limit=limit, chunk_size=5, **options)
    wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="mean")
    sgd = torch.optim.SGD(wrapped.parameters(), lr=1.0)
    options |= {"generator": seeded(4), "max_grad_norm": limit, "expected_batch_size": 10}
    optimizer = DPOptimizer(sgd, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that full backward hooks see no input gradient
        loss_fn(wrapped(data), targets).backward()
    optimizer.step()
    before = dict(model.named_parameters())
    theirs = {
        name: (before[name] - after) * 10 for name, after in wrapped._module.named_parameters()
    }
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5 * limit)


def test_frozen_parameters_get_none():
    given = small()
    given[0][0].weight.requires_grad_(False)
    with torch.inference_mode():
        got = privacy.private_sum(*given, limit=1.0, noise_multiplier=1.0)
    assert list(got) == ["0.bias", "2.weight", "2.bias"]


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize(
    ("change", "options", "what"),
    [
        *((None, {"limit": limit}, "limit must be") for limit in (0.0, -1.0, math.inf, math.nan)),
        *((None, {"noise_multiplier": n}, "noise_multiplier must") for n in (-1, math.inf, None)),
        (lambda m: nn.Sequential(m, nn.BatchNorm1d(3).double()), {}, "1 is BatchNorm in training"),
        (lambda m: m.to("meta"), {"generator": seeded(0)}, "generator is on cpu and 0.weight on"),
        (lambda m: m.to(torch.complex128), {}, "0.weight is complex"),
    ],
)
def test_what_the_sum_refuses(change, options, what):
    model, *given = small()
    options = {"limit": 1.0, "noise_multiplier": 1.0, **options}
    with pytest.raises((ValueError, TypeError), match=re.escape(what)):
        privacy.private_sum(change(model) if change else model, *given, **options)


# The guarantee


def exact_epsilon(noise_multiplier: float, steps: int, delta: float) -> float:
    """Solve for the epsilon of Gaussian noise without subsampling (Balle and Wang 2018)."""
    mu = steps**0.5 / noise_multiplier  # steps add up like one of less noise

    def excess(eps: float) -> float:
        above = stats.norm.cdf(mu / 2 - eps / mu)
        return above - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu) - delta

    return optimize.brentq(excess, 0, 50)


@pytest.mark.parametrize(("noise_multiplier", "steps"), [(3.0, 1), (8.0, 10), (60.0, 100)])
def test_accountants_are_bounds_of_the_exact_epsilon(noise_multiplier, steps):
    exact = exact_epsilon(noise_multiplier, steps, 1e-5)
    prv = privacy.epsilon(noise_multiplier, 1.0, steps, 1e-5, accountant="prv")
    assert exact < prv < exact + 0.021
    assert exact < privacy.epsilon(noise_multiplier, 1.0, steps, 1e-5) < 1.15 * exact + 0.01


def test_renyi_divergence_by_integration():
    """The RDP epsilon is the smallest over orders, the divergence here from its definition."""
    noise, rate, steps, delta = 1.1, 0.02, 500, 1e-5
    x = torch.linspace(-40, 60, 200_001, dtype=torch.float64)
    log_density = -(x**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    ratio = ((2 * x - 1) / (2 * noise**2) + math.log(rate)).logaddexp(
        torch.tensor(math.log(1 - rate), dtype=torch.float64)
    )
    best = math.inf
    for order in [1 + tenth / 10 for tenth in range(1, 100)] + list(range(12, 64)):
        moment = torch.trapezoid((log_density + order * ratio).exp(), x).log().item()
        convert = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        best = min(best, steps * moment / (order - 1) + convert)
    assert privacy.epsilon(noise, rate, steps, delta) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize("setting", [(0.5, 1.0, 50), (2.0, 0.05, 200)])
def test_the_noise_for_an_epsilon_is_the_smallest_that_does(accountant, setting):
    target, *rest = setting
    noise = privacy.noise_multiplier_for(target, *rest, 1e-5, accountant=accountant)
    assert privacy.epsilon(noise, *rest, 1e-5, accountant=accountant) <= target
    assert privacy.epsilon(noise * 0.999, *rest, 1e-5, accountant=accountant) > target
    assert privacy.epsilon(0.0, *rest, 1e-5, accountant=accountant) == math.inf


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("call", "given", "what"),
    [
        (privacy.epsilon, {"rate": 1.1}, "rate must be above 0 and at most 1"),
        (privacy.epsilon, {"delta": 0.0}, "delta must be above 0 and below 1"),
        (privacy.epsilon, {"accountant": "gdp"}, "accountant must be 'rdp' or 'prv', got 'gdp'"),
        (privacy.epsilon, {"first": -1.0}, "noise_multiplier must be a finite number"),
        (privacy.epsilon, {"steps": 0}, "steps must be a whole number, at least 1, got 0"),
        (privacy.noise_multiplier_for, {"first": 0.0}, "epsilon must be a finite number above 0"),
        (privacy.noise_multiplier_for, {"first": 0.05}, "'rdp' promises no epsilon as small as"),
    ],
)
def test_what_budgets_refuse(call, given, what):
    given = {"first": 1.0, "rate": 0.1, "steps": 10, "delta": 1e-5, **given}
    with pytest.raises(ValueError, match=what):
        call(given.pop("first"), **given)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize("call", [privacy.epsilon, privacy.noise_multiplier_for])
def test_a_delta_that_promises_nothing_is_warned_of(call, accountant):
    with pytest.warns(UserWarning, match=r"delta = 0\.02 is not below 1/n") as caught:
        call(2.0, 0.01, 10, 0.02, accountant=accountant)
    assert [warning.filename for warning in caught] == [__file__]
