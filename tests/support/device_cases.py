"""The helpers and the zoo on another device than the CPU, compared with the CPU.

`TEST_DEVICE=cuda pytest tests/support/device_cases.py` is for a machine that has one. Without
`TEST_DEVICE` it is the pretended accelerator, which changes the process that it is in; so this file
is not collected by itself, and `tests/tooling/test_pretend.py` runs it in a process of its own.
"""

import functools
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from helpers import devices, gradients, norms, privacy, projection
from helpers.gradient_computers import FunctionalGradientComputer
from helpers.transforms.batches import Batch
from tests.support import zoo
from tests.support.oracle import Truth, assert_equal
from tests.support.ways import WAYS, computer
from tests.support.wild import Product

PRETENDED = "TEST_DEVICE" not in os.environ
if PRETENDED:
    import tests.support.pretend  # noqa: F401  (makes the device, which "auto" then means)
DEVICE = devices.resolve(os.environ.get("TEST_DEVICE", "auto"))
pytestmark = pytest.mark.filterwarnings("ignore")


def moved(case: zoo.Case) -> zoo.Case:
    data, targets = (tensor.to(DEVICE) for tensor in case.batch)
    return zoo.Case(case.model.to(DEVICE), data, targets, case.loss_fn)


def on_cpu(result):
    assert {tensor.device for tensor in tree_leaves(result)} == {DEVICE}
    return tree_map(torch.Tensor.cpu, result)


truth_of = functools.cache(lambda name: Truth(lambda: zoo.make(name)))
NAMES = [name for name in zoo.MODELS if name not in zoo.RECURRENCES]
if PRETENDED:  # an accelerator has one operation for the cells of these, which a CPU has not
    NAMES = [name for name in NAMES if not name.startswith(("lstm", "gru"))]
TAKEN = "loop", "func", "func, out, chunks", "norms", "clipped sum", "functional computer"
TAKEN += "iterative computer", "func Jacobians", "kernel"


@pytest.mark.parametrize("way", TAKEN)
@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_is_as_on_the_cpu(name, way):
    truth, way = truth_of(name), WAYS[way]
    if not way.takes(truth):
        pytest.skip("of outputs (B, Y), and few of them")
    assert_equal(on_cpu(way.compute(moved(zoo.make(name)), truth)), way.expected(truth), 1e-9)


@pytest.mark.parametrize("kind", ["rademacher", "sparse", "factored"])
def test_projections_are_as_on_the_cpu(kind):
    def features(case):
        made = computer(FunctionalGradientComputer, case)
        return projection.project_batches(made, [case.batch], 16, kind=kind, seed=3).cpu()

    torch.testing.assert_close(features(moved(zoo.make("mlp"))), features(zoo.make("mlp")))


def test_private_batches_and_sums_stay_on_the_device():
    case = moved(zoo.make("cnn"))
    options = {"limit": 0.5, "noise_multiplier": 2.0}
    generator = torch.Generator(DEVICE).manual_seed(0)
    (batch,) = privacy.poisson_batches(1000, 0.5, 1, generator)
    assert 400 < len(on_cpu(batch)) < 600
    total = on_cpu(privacy.private_sum(*case.args, generator=generator, **options))
    clipped = norms.clipped_sum(*zoo.make("cnn").args, 0.5)
    noise = torch.cat([(total[name] - clipped[name]).flatten() for name in clipped])
    assert abs(noise.std().item() - 1) < 5 / (2 * len(noise)) ** 0.5
    with pytest.raises(ValueError, match="generator is on cpu and"):
        privacy.private_sum(*case.args, generator=torch.Generator(), **options)


class OnTheCpu(Product):
    """A product with a backward that was tried on a CPU only."""

    @staticmethod
    def backward(ctx, grads):
        return Product.backward(ctx, grads * torch.ones(grads.shape, dtype=grads.dtype))


FAULTS = {
    "forward": lambda m, x: m.fc(torch.where(torch.ones(3) > 0, x, 0 * x)),
    "backward": lambda m, x: m.fc(OnTheCpu.apply(m.fc2(x), m.fc2.weight)),
}


@pytest.mark.parametrize("way", ["loop", "func", "norms"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_tensor_that_a_model_makes_on_the_cpu_is_caught(fault, way):
    model = zoo.Apply(FAULTS[fault], fc=nn.Linear(3, 2), fc2=nn.Linear(3, 3)).double()
    case = zoo.Case(model, torch.rand(4, 3).double(), torch.rand(4, 2).double(), zoo.squared)
    WAYS[way].compute(case, None)  # nothing is wrong there
    with pytest.raises(RuntimeError, match="same device"):
        WAYS[way].compute(moved(case), None)


def test_targets_elsewhere_are_refused():
    case = moved(zoo.make("linear"))
    with pytest.raises((RuntimeError, ValueError), match="device"):
        gradients.func_gradients(case.model, F.mse_loss, case.data, case.targets.cpu())


@pytest.mark.parametrize("chunk_size", [None, 2, 1])
@pytest.mark.parametrize(("randomness", "masks"), [("same", 1), ("different", 6)])
def test_samples_share_random_numbers_in_all_chunks_or_in_none(randomness, masks, chunk_size):
    torch.manual_seed(0)
    first = torch.rand(3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1, device=DEVICE))
    data, targets = torch.ones(6, 40, device=DEVICE), torch.zeros(6, 1, device=DEVICE)
    torch.manual_seed(0)
    options = {"randomness": randomness, "chunk_size": chunk_size}
    with pytest.raises(ValueError, match="draws random numbers"):
        gradients.func_gradients(model, zoo.squared, data, targets)
    rows = on_cpu(gradients.func_gradients(model, zoo.squared, data, targets, **options))
    assert len({tuple(row) for row in (rows["1.weight"].flatten(1) != 0).tolist()}) == masks
    if DEVICE.type != "cpu":
        assert torch.equal(torch.rand(3), first)  # the stream of the CPU is another


def test_samples_lie_where_one_of_their_tensors_is_on_a_device():
    """Lengths, for example, may stay on the CPU: the random stream that counts is another."""
    given = {"lengths": torch.tensor([3, 1]), "x": torch.ones(2, 3, device=DEVICE)}
    batch = Batch(data=given, targets=torch.tensor([0, 1]))
    assert [leaf.device.type for leaf in batch.leaves] == [DEVICE.type, "cpu", "cpu"]
    data, _ = batch.trees(batch.leaves)
    assert torch.equal(data["lengths"], given["lengths"])
