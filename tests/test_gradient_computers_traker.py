"""Drop-in for the real package: `traker` runs on these computers and this task, with its scores."""

import functools
import logging
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.data import load_digits
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from helpers.model_outputs import ImageClassificationModelOutput

trak = pytest.importorskip("trak", reason="traker, a test dependency, is not installed")
from trak.gradient_computers import FunctionalGradientComputer as TheirComputer  # noqa: E402
from trak.modelout_functions import ImageClassificationModelOutput as TheirTask  # noqa: E402

TRAINING, TARGETS = 400, 15


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(216, 10),
    )


@functools.cache
def made() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return digits, and two small networks whose BatchNorm has seen them."""
    images, labels = load_digits()
    count = TRAINING + TARGETS
    digits = [F.avg_pool2d(images, 2)[:count], labels[:count]]
    checkpoints = []
    for start in range(2):
        torch.manual_seed(start)
        model = network()
        for _ in range(20):  # for the running statistics
            model(digits[0])
        checkpoints.append(model.state_dict())
    return digits, checkpoints


def scores(folder: Path, computer: type, task: object, **options: object) -> Tensor:
    """Run the package as its tutorial does, two models and batches of 50."""
    (images, labels), checkpoints = made()
    traker = trak.TRAKer(
        model=network(),
        task=task,
        train_set_size=TRAINING,
        save_dir=str(folder),
        device="cpu",
        gradient_computer=computer,
        use_half_precision=False,
        proj_dim=110,  # two blocks of the package's projector
        # Without a ridge, the inverse of the kernel would magnify the rounding of float32.
        lambda_reg=0.1,
        logging_level=logging.ERROR,
        **options,
    )
    for model_id, checkpoint in enumerate(checkpoints):
        traker.load_checkpoint(checkpoint, model_id=model_id)
        for start in range(0, TRAINING, 50):
            batch = images[start : start + 50], labels[start : start + 50]
            traker.featurize(batch=batch, num_samples=50)
    traker.finalize_features()
    targets = [images[TRAINING:], labels[TRAINING:]]
    for model_id, checkpoint in enumerate(checkpoints):
        traker.start_scoring_checkpoint("digits", checkpoint, model_id, num_targets=TARGETS)
        traker.score(batch=targets, num_samples=TARGETS)
    return torch.tensor(traker.finalize_scores("digits"))


def assert_same(got: Tensor, expected: Tensor) -> None:
    assert got.shape == (TRAINING, TARGETS)
    assert expected.abs().max() > 0
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Tensor:
    folder = tmp_path_factory.mktemp("theirs")
    return scores(folder, TheirComputer, "image_classification")


@pytest.mark.parametrize(
    ("computer", "task"),
    [
        (FunctionalGradientComputer, TheirTask),
        (IterativeGradientComputer, TheirTask),
        (TheirComputer, ImageClassificationModelOutput),
    ],
)
def test_the_package_gives_its_own_scores(computer, task, tmp_path, theirs):
    assert_same(scores(tmp_path, computer, task()), theirs)


@pytest.mark.parametrize("kind", [FunctionalGradientComputer, IterativeGradientComputer])
def test_a_subset_of_the_parameters(kind, tmp_path, theirs):
    # In the model's order, which the package returns; the computers return the order asked for.
    names = ["1.bias", "4.weight"]
    expected = scores(tmp_path / "theirs", TheirComputer, TheirTask(), grad_wrt=names)
    own_task = ImageClassificationModelOutput()
    got = scores(tmp_path / "own", kind, own_task, grad_wrt=names)
    assert_same(got, expected)
    assert (got - theirs).abs().max() > 1e-2 * theirs.abs().max(), "a subset has other scores"
