"""Random projection: what it keeps, its random streams, its memory, and what it refuses."""

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import benchmark
from helpers.gradient_computers import FunctionalGradientComputer
from helpers.model_outputs import ImageClassificationModelOutput
from helpers.models import MLP
from helpers.projection import project, project_batches, sketches

SHAPES = {"a": (3, 40), "scalar": (), "b": (7,), "empty": (0, 3), "c": (2, 3, 5)}


def named(flat: Tensor) -> dict[str, Tensor]:
    """Split `(B, 158)` into gradients by name."""
    parts = flat.split([torch.Size(shape).numel() for shape in SHAPES.values()], dim=1)
    return {n: part.reshape(len(flat), *SHAPES[n]) for n, part in zip(SHAPES, parts, strict=True)}


def matrix(k: int, **options: object) -> Tensor:
    """Read the whole matrix `(P, k)` off: the projection of the unit vectors."""
    return project(named(torch.eye(158, dtype=torch.float64)), k, **options) * k**0.5


@pytest.mark.parametrize(("kind", "narrowest"), [("rademacher", 1), ("sparse", 1), ("sparse", 24)])
def test_it_is_a_product_with_one_matrix(kind, narrowest, monkeypatch):
    monkeypatch.setattr(sketches, "BLOCK", 64)  # several blocks for each parameter
    monkeypatch.setattr(sketches, "_NARROWEST", narrowest)
    for batch_size in (6, 1, 0):
        flat = torch.randn(batch_size, 158, dtype=torch.float64)
        expected = flat @ matrix(8, kind=kind) / 8**0.5
        torch.testing.assert_close(project(named(flat), 8, kind=kind), expected)


def test_every_model_and_block_has_a_stream_of_its_own_at_any_k(monkeypatch):
    drawn, make = {}, sketches.generator

    def record(stream: tuple[int, ...]) -> np.random.Generator:
        first = make(stream).bytes(32)
        assert drawn.setdefault(first, stream) == stream, "two streams give the same numbers"
        return make(stream)

    monkeypatch.setattr(sketches, "generator", record)
    monkeypatch.setattr(sketches, "BLOCK", 2048)
    for seed, model_id in [(0, 0), (0, 1), (0, 2), (1, 0), (1000, 0), (100_000, 0), (2**32, 0)]:
        project({"w": torch.ones(1, 256)}, 1024, seed=seed, model_id=model_id)
    assert len(drawn) == 7 * 128, "more than 100 blocks for each"


def test_a_seed_means_the_same_numbers_for_any_batch_and_dtype():
    state = torch.get_rng_state()
    few, many = (project({"w": torch.ones(n, 99)}, 3, seed=5, model_id=2) for n in (1, 4))
    assert torch.equal(torch.get_rng_state(), state), "the caller's random stream stays"
    torch.testing.assert_close(many[:1], few)
    grads = {"w": torch.full((2, 4000), 60.0, dtype=torch.float16)}  # summed in float32
    features, exact = project(grads, 5), project({"w": grads["w"].double()}, 5)
    torch.testing.assert_close(features, exact.float(), rtol=1e-5, atol=1e-2)


def test_the_peak_memory_does_not_grow_with_n_times_p(monkeypatch):
    monkeypatch.setattr(sketches, "BLOCK", 2**14)
    task, batch = ImageClassificationModelOutput(), (torch.rand(8, 784), torch.arange(8))
    computer = FunctionalGradientComputer(MLP(), task, 15_910, torch.float32, "cpu")
    few, many = (
        benchmark.memory(lambda n=n: project_batches(computer, [batch] * n, 8)).peak
        for n in (1, 20)
    )
    assert many <= few + 3 * 160 * 8 * 4  # features
    grads = {"w": torch.ones(1, 50_000)}  # nor is the random matrix there as a whole
    assert benchmark.memory(lambda: project(grads, 64)).peak < 2**14 * 4 + 10_000


GOOD = {"w": torch.ones(2, 3)}
BAD = {  # by a word of what is said
    "k must": (GOOD, {"k": 0}),
    "'gauss'": (GOOD, {"kind": "gauss"}),
    "project_batches": (GOOD, {"kind": "factored"}),
    "none": ({}, {}),
    "w and b": ({"w": torch.ones(2, 3), "b": torch.ones(3, 3)}, {}),
    "int64": ({"w": torch.ones(2).long()}, {}),
}


@pytest.mark.parametrize("word", BAD)
def test_bad_input_is_refused(word):
    grads, options = BAD[word]
    with pytest.raises((TypeError, ValueError), match=word):
        project(grads, **{"k": 4, **options})
