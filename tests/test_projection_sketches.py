"""The sparse and the factored projection: one map whatever is known, its law, its memory."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import benchmark
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from helpers.projection import factors, project, project_batches, sketches
from tests.support import wild, zoo
from tests.support.ways import LossOf, computer
from tests.support.zoo import Apply, Case, squared


def tied() -> Case:
    """An embedding whose weight is used again at the end, and a matrix from the right."""

    def run(self: Apply, tokens: Tensor) -> Tensor:
        x = torch.tanh((self.table(tokens) + self.position) @ self.turned)
        return F.linear(x, self.table.weight).mean(1)

    torch.manual_seed(0)
    position, turned = nn.Parameter(torch.randn(4, 12)), nn.Parameter(torch.randn(12, 12))
    model = Apply(run, table=nn.Embedding(50, 12), position=position, turned=turned)
    return Case(model.double(), torch.randint(50, (5, 4)), torch.zeros(5, 50).double(), squared)


CASES = {"tied": tied, "item": functools.partial(wild.make, "item")}
for NAME in ("mlp", "cnn", "grouped", "embedding"):
    CASES[NAME] = functools.partial(zoo.make, NAME)


@pytest.fixture
def short(monkeypatch):
    """Make small models be projected by their factors, in several blocks."""
    monkeypatch.setattr(factors, "LARGEST", 9)
    monkeypatch.setattr(sketches, "_NARROWEST", 32)


@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
@pytest.mark.parametrize("name", CASES)
def test_features_do_not_depend_on_how_gradients_come(name, short):
    case = CASES[name]()
    nothing = (case.data[:0], case.targets[:0])
    parts = list(zip(case.data.split(2), case.targets.split(2), strict=True))
    options = {"k": 10, "kind": "factored", "seed": 3, "model_id": 1}
    fast = computer(FunctionalGradientComputer, case)
    chunked = computer(FunctionalGradientComputer, case, chunk_size=2)
    looped = computer(IterativeGradientComputer, case)

    expected = project_batches(fast, [case.batch], **options)
    assert expected.norm() > 0
    for features in (
        project_batches(looped, [nothing, case.batch], **options),
        project_batches(chunked, [case.batch], **options),
        project_batches(fast, [nothing, *parts], **options),
    ):
        torch.testing.assert_close(features, expected, rtol=1e-9, atol=1e-9)


def plain(samples: int, first: int, hidden: int, last: int) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(first, hidden), nn.Tanh(), nn.Linear(hidden, last))
    return Case(model, torch.randn(samples, first), torch.zeros(samples, last), squared)


# How many times the error of a dense matrix is allowed.
TIMES = {"rademacher": 1.3, "sparse": 1.3, "factored": 3}


@pytest.mark.parametrize("kind", TIMES)
def test_inner_products_are_right_on_average_and_err_by_the_law(kind, monkeypatch):
    monkeypatch.setattr(factors, "LARGEST", 256)  # sides of 16 for a matrix of 30 by 40
    case = plain(5, 40, 30, 3)
    k = 64
    fast = computer(FunctionalGradientComputer, case)
    grads = fast.compute_per_sample_grad(case.batch)
    flat = torch.cat([tensor.flatten(1) for tensor in grads.values()], dim=1)
    scale = flat.norm(dim=1)[:, None] * flat.norm(dim=1)
    cosines = flat @ flat.T / scale
    errors = []
    for model_id in range(200):
        if kind == "factored":
            features = project_batches(fast, [case.batch], k, kind=kind, model_id=model_id)
        else:
            features = project(grads, k, kind=kind, model_id=model_id)
        errors.append(features @ features.T / scale - cosines)
    error = torch.stack(errors)
    law = ((1 + cosines**2) / k).sqrt()  # of dense matrices
    assert (error.square().mean(0).sqrt() < TIMES[kind] * law).all()
    # Each mean is of 200 draws: 5 of its standard deviations, in 15 places, one in 10^5 runs.
    assert (error.mean(0).abs() < 5 * error.std(0) / 200**0.5).all()


def test_the_gradients_never_exist():
    case = plain(16, 2000, 1000, 3)
    formed = 16 * sum(parameter.nbytes for parameter in case.model.parameters())
    task = LossOf(squared)
    fast = FunctionalGradientComputer(case.model, task, formed // 64, torch.float32, "cpu")

    def peak(kind: str) -> int:
        return benchmark.memory(lambda: project_batches(fast, [case.batch], 64, kind=kind)).peak

    assert peak("factored") < formed / 4
    assert peak("sparse") > formed
