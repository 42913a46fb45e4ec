"""Random projection: what it keeps, its random streams, its memory, and what it refuses."""

import math

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
    grads = {}
    start = 0
    for name, shape in SHAPES.items():
        end = start + math.prod(shape)
        grads[name] = flat[:, start:end].reshape(len(flat), *shape)
        start = end
    return grads


def matrix(k: int, **options: object) -> Tensor:
    """Read the whole matrix `(P, k)` off: the projection of the unit vectors."""
    unit_vectors = torch.eye(158, dtype=torch.float64)
    return project(named(unit_vectors), k, **options) * k**0.5


@pytest.mark.parametrize(("kind", "narrowest"), [("rademacher", 1), ("sparse", 1), ("sparse", 24)])
def test_it_is_a_product_with_one_matrix(kind, narrowest, monkeypatch):
    monkeypatch.setattr(sketches, "BLOCK", 64)  # several blocks for each parameter
    monkeypatch.setattr(sketches, "_NARROWEST", narrowest)
    for batch_size in (6, 1, 0):
        flat = torch.randn(batch_size, 158, dtype=torch.float64)
        expected = flat @ matrix(8, kind=kind) / 8**0.5
        torch.testing.assert_close(project(named(flat), 8, kind=kind), expected)


def test_every_model_and_block_has_a_stream_of_its_own_at_any_k(monkeypatch):
    make = sketches.generator
    streams = {}  # by the first numbers that they give

    def record(stream: tuple[int, ...]) -> np.random.Generator:
        first = make(stream).bytes(32)
        assert streams.setdefault(first, stream) == stream, "two streams give the same numbers"
        return make(stream)

    monkeypatch.setattr(sketches, "generator", record)
    monkeypatch.setattr(sketches, "BLOCK", 2048)
    for model_id in (0, 1, 2):
        project({"w": torch.ones(1, 256)}, 1024, model_id=model_id)
    for seed in (1, 1000, 100_000, 2**32):
        project({"w": torch.ones(1, 256)}, 1024, seed=seed)
    assert len(streams) == 7 * 128, "more than 100 blocks for each"


def test_a_seed_means_the_same_numbers_for_any_batch_and_dtype():
    state = torch.get_rng_state()
    few = project({"w": torch.ones(1, 99)}, 3, seed=5, model_id=2)
    many = project({"w": torch.ones(4, 99)}, 3, seed=5, model_id=2)
    assert torch.equal(torch.get_rng_state(), state), "the caller's random stream stays"
    torch.testing.assert_close(many[:1], few)

    half = torch.full((2, 4000), 60.0, dtype=torch.float16)
    features = project({"w": half}, 5)  # summed in float32
    exact = project({"w": half.double()}, 5)
    torch.testing.assert_close(features, exact.float(), rtol=1e-5, atol=1e-2)


def test_the_peak_memory_does_not_grow_with_n_times_p(monkeypatch):
    monkeypatch.setattr(sketches, "BLOCK", 2**14)
    task = ImageClassificationModelOutput()
    computer = FunctionalGradientComputer(MLP(), task, 15_910, torch.float32, "cpu")
    batch = (torch.rand(8, 784), torch.arange(8))
    few = benchmark.memory(lambda: project_batches(computer, [batch], 8))
    many = benchmark.memory(lambda: project_batches(computer, [batch] * 20, 8))
    features = 160 * 8 * 4  # bytes
    assert many.peak <= few.peak + 3 * features

    # Nor is the random matrix there as a whole, but one block of it.
    grads = {"w": torch.ones(1, 50_000)}
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
    arguments = {"k": 4}
    arguments.update(options)
    with pytest.raises((TypeError, ValueError), match=word):
        project(grads, **arguments)
