"""The sparse and the factored projection: one map whatever is known, its law, its memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import benchmark, gradient_computers
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from helpers.model_outputs import AbstractModelOutput
from helpers.projection import factors, project, project_batches, sketches
from helpers.projection.sketches import Sketch


class Squares(AbstractModelOutput):
    """Half the sum of squares of what a model gives for one sample."""

    def get_output(self, model, weights, buffers, sample):
        tensors = {**weights, **buffers}
        return torch.func.functional_call(model, tensors, (sample[None],)).square().sum() / 2

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        return torch.ones(len(batch[0]), 1)


class Tied(nn.Module):
    """An embedding whose weight is used again at the end, and a position that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 12)
        self.position = nn.Parameter(torch.randn(4, 12))
        self.turned = nn.Parameter(torch.randn(12, 12))

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh((self.embedding(tokens) + self.position) @ self.turned)
        return F.linear(x, self.embedding.weight).mean(1)


class Unseen(nn.Linear):
    """A layer that `vmap` cannot run, so that gradients come from a loop."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if x.sum().item() > -1e9 else 2)


def models() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    images, tokens = torch.randn(5, 4, 6, 6), torch.randint(50, (5, 4))
    head = [nn.Flatten(), nn.Linear(16 * 16, 8)]
    return {
        "linear": (
            nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)),
            torch.randn(5, 40),
        ),
        "sequence": (nn.Linear(40, 30), torch.randn(5, 7, 40)),
        "convolution": (nn.Sequential(nn.Conv2d(4, 16, 3), nn.Tanh(), *head), images),
        "groups": (nn.Sequential(nn.Conv2d(4, 16, 3, groups=2), nn.Tanh(), *head), images),
        "tied": (Tied(), tokens),
        "unseen": (Unseen(40, 30), torch.randn(5, 40)),
    }


def computer(
    name: str, kind: type = FunctionalGradientComputer, **options: object
) -> tuple[gradient_computers.AbstractGradientComputer, Tensor]:
    model, data = models()[name]
    entries = sum(parameter.numel() for parameter in model.parameters())
    dtype = options.pop("dtype", torch.float64)
    data = data.to(dtype) if data.is_floating_point() else data
    return kind(model.to(dtype), Squares(), entries, dtype, "cpu", **options), data


@pytest.fixture
def short(monkeypatch):
    """Make small models be projected by their factors, in several blocks."""
    monkeypatch.setattr(factors, "LARGEST", 64)
    monkeypatch.setattr(sketches, "_NARROWEST", 32)


@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
@pytest.mark.parametrize("name", models())
def test_features_do_not_depend_on_how_gradients_come(name, short):
    fast, data = computer(name)
    expected = project_batches(fast, [(data,)], 10, kind="factored", seed=3, model_id=1)
    assert expected.norm() > 0
    slow, _ = computer(name, IterativeGradientComputer)
    chunked, _ = computer(name, chunk_size=2)
    for made, batches in (
        (slow, [(data,)]),
        (chunked, [(data,)]),
        (fast, [(part,) for part in data.split(2)]),
        (fast, [(data[:0],), (data,)]),
    ):
        features = project_batches(made, batches, 10, kind="factored", seed=3, model_id=1)
        torch.testing.assert_close(features, expected, rtol=1e-9, atol=1e-9)
    for other in ({"seed": 4, "model_id": 1}, {"seed": 3, "model_id": 0}):
        features = project_batches(fast, [(data,)], 10, kind="factored", **other)
        assert (features - expected).norm() > 0.1 * expected.norm()


@pytest.mark.parametrize("kind", [FunctionalGradientComputer, IterativeGradientComputer])
@pytest.mark.parametrize("projection", ["sparse", "factored"])
def test_an_empty_batch_has_no_features(kind, projection):
    made, data = computer("linear", kind)
    assert project_batches(made, [(data[:0],)], 10, kind=projection).shape == (0, 10)


def test_factors_are_taken_where_they_are_known(short, monkeypatch):
    (fast, data), (grouped, images) = computer("convolution"), computer("groups")
    expected = project_batches(fast, [(data,)], 10, kind="factored")
    reduced = factors.Map.reduced

    def refuse(self: factors.Map, gradients: Tensor) -> Tensor:
        assert not self.reduces, "a gradient was formed"
        return reduced(self, gradients)

    monkeypatch.setattr(factors.Map, "reduced", refuse)
    torch.testing.assert_close(project_batches(fast, [(data,)], 10, kind="factored"), expected)
    with pytest.raises(AssertionError, match="formed"):  # a group has a part of the rows
        project_batches(grouped, [(images,)], 10, kind="factored")


def errors(kind: str, k: int, draws: int) -> tuple[Tensor, Tensor]:
    """Return errors of inner products over their scale, and the law of dense matrices."""
    fast, data = computer("linear", dtype=torch.float32)
    grads = fast.compute_per_sample_grad((data,))
    flat = torch.cat([tensor.flatten(1) for tensor in grads.values()], dim=1)
    scale = flat.norm(dim=1)[:, None] * flat.norm(dim=1)
    cosines = flat @ flat.T / scale

    def features(model_id: int) -> Tensor:
        if kind == "factored":
            return project_batches(fast, [(data,)], k, kind=kind, model_id=model_id)
        return project(grads, k, kind=kind, model_id=model_id)

    products = torch.stack([f @ f.T for f in map(features, range(draws))])
    return products / scale - cosines, ((1 + cosines**2) / k).sqrt()


@pytest.mark.parametrize(("kind", "times"), [("sparse", 1.3), ("factored", 3)])
def test_inner_products_are_right_on_average_and_err_by_the_law(kind, times, monkeypatch):
    monkeypatch.setattr(factors, "LARGEST", 256)  # sides of 16 for a matrix of 30 by 40
    error, law = errors(kind, 64, draws=200)
    assert (error.square().mean(0).sqrt() < times * law).all()
    # Each mean is of 200 draws: 5 of its standard deviations, in 15 places, one in 10^5 runs.
    assert (error.mean(0).abs() < 5 * error.std(0) / 200**0.5).all()


def test_a_sketch_has_one_sign_for_each_coordinate_and_shifts_of_its_own():
    like = torch.zeros((), dtype=torch.float64)
    sketch = Sketch(103, 10, (0, 1), like)
    matrix = sketch(torch.eye(103, dtype=torch.float64))  # (103, 10)
    assert (matrix.abs().sum(1) == 1).all()
    places, signs = sketch.places(torch.arange(103))
    assert torch.equal(matrix.abs().argmax(1), places)
    assert torch.equal(matrix.sum(1), signs)
    assert not torch.equal(matrix, Sketch(103, 10, (0, 2), like)(torch.eye(103).double()))
    many = Sketch(100_000, 10, (0, 1), like)
    counts = torch.bincount(torch.tensor(many.shifts), minlength=10)
    assert ((counts - 1000).abs() < 5 * 900**0.5).all()  # 10,000 blocks, each shift a tenth
    assert abs(many.signs.mean()) < 5 / 100_000**0.5


def test_both_sides_of_a_gradient_have_signs_of_their_own():
    sides = factors.Map(torch.Size([500, 500]), (0,), torch.zeros(()))
    assert sides.left.width == sides.right.width == 256
    assert abs((sides.left.signs * sides.right.signs).mean()) < 5 / 500**0.5


def test_coordinates_k_apart_meet_as_often_as_others(monkeypatch):
    """What is kept wider than k is folded at random, or they would always meet."""
    monkeypatch.setattr(sketches, "_NARROWEST", 64)
    pair = torch.zeros(1, 64)
    pair[0, [0, 8]] = 1
    draws = [project({"w": pair}, 8, kind="sparse", seed=seed)[0] for seed in range(800)]
    met = sum((features != 0).sum().item() < 2 for features in draws)
    assert abs(met - 100) < 5 * (800 / 8 * 7 / 8) ** 0.5  # one in eight; 5 standard deviations


def test_the_gradients_never_exist(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2000, 1000), nn.Tanh(), nn.Linear(1000, 3))
    entries = sum(parameter.numel() for parameter in model.parameters())
    fast = FunctionalGradientComputer(model, Squares(), entries, torch.float32, "cpu")
    data = torch.randn(16, 2000)
    held = benchmark.memory(lambda: project_batches(fast, [(data,)], 64, kind="factored")).peak
    assert held < 16 * entries * 4 / 4
    formed = benchmark.memory(lambda: project_batches(fast, [(data,)], 64, kind="sparse")).peak
    assert formed > 16 * entries * 4


def test_a_computer_without_parameters_is_refused():
    model = nn.Linear(3, 2).requires_grad_(False)
    made = FunctionalGradientComputer(model, Squares(), 0, torch.float32, "cpu")
    with pytest.raises(ValueError, match=r"^the computer must have a parameter to differentiate"):
        project_batches(made, [(torch.ones(2, 3),)], 4, kind="factored")
