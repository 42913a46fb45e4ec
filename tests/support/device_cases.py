"""The helpers and the zoo on another device than the CPU, compared with the CPU.

`TEST_DEVICE=cuda pytest tests/support/device_cases.py` is for a machine that has one. Without
`TEST_DEVICE` it is the pretended accelerators, which change the process that they are in; so this
file is not collected by itself, and `tests/tooling/test_pretend.py` runs it in a process of its
own, once with float64 and once without.
"""

import functools
import os
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils._pytree import tree_leaves, tree_map

from helpers import devices, gradients, kernels, limits, noise, norms, privacy, projection
from helpers.gradient_computers import FunctionalGradientComputer
from helpers.transforms.batches import Batch
from tests.support import zoo
from tests.support.oracle import Truth, assert_equal
from tests.support.ways import WAYS, computer
from tests.support.wild import Product

PRETENDED = "TEST_DEVICE" not in os.environ
if PRETENDED:
    import tests.support.pretend as pretend  # makes the device, which "auto" then means
DEVICE = devices.resolve(os.environ.get("TEST_DEVICE", "auto"))
HAS_FLOAT64 = devices.for_float64(DEVICE) == DEVICE
pytestmark = pytest.mark.filterwarnings("ignore")
in_pretence = pytest.mark.skipif(not PRETENDED, reason="needs the pretended device")


def moved(case: zoo.Case, device: torch.device = DEVICE) -> zoo.Case:
    """Move a case to a device, in float32 where there is no float64."""
    dtype = torch.float64 if HAS_FLOAT64 else torch.float32
    batch = []
    for tensor in case.batch:
        if tensor.is_floating_point():
            tensor = tensor.to(dtype)
        batch.append(tensor.to(device))
    return zoo.Case(case.model.to(dtype).to(device), *batch, case.loss_fn)


def on_cpu(result):
    assert {tensor.device for tensor in tree_leaves(result)} == {DEVICE}
    return tree_map(torch.Tensor.cpu, result)


truth_of = functools.cache(lambda name: Truth(lambda: zoo.make(name)))
NAMES = [name for name in zoo.MODELS if name not in zoo.RECURRENCES]
if PRETENDED:  # an accelerator has one operation for the cells of these, which a CPU has not
    NAMES = [name for name in NAMES if not name.startswith(("lstm", "gru"))]
if not HAS_FLOAT64:
    NAMES = []  # the zoo is in float64
TAKEN = "loop", "func", "func, out, chunks", "norms", "clipped sum", "functional computer"
TAKEN += "iterative computer", "func Jacobians", "kernel"


@pytest.mark.parametrize("way", TAKEN)
@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_is_as_on_the_cpu(name, way):
    truth, way = truth_of(name), WAYS[way]
    if not way.takes(truth):
        pytest.skip("of outputs (B, Y), and few of them")
    tolerance = 1e-9
    if DEVICE.type == "cuda" and name.startswith("weight norm"):
        tolerance = 1e-6  # CUDA's kernel takes the norm in float32, for the loop as well
    found = on_cpu(way.compute(moved(zoo.make(name)), truth))
    assert_equal(found, way.expected(truth), tolerance)


@pytest.mark.skipif(not HAS_FLOAT64, reason="the computer is asked for float64")
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
    # A generator without an index draws for the current device, as torch's own functions do.
    without_index = torch.Generator(DEVICE.type).manual_seed(0)
    on_cpu(privacy.private_sum(*case.args, generator=without_index, **options))


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


class Summed(nn.Module):
    """Add up what a linear layer makes of each item of a packed sequence."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, packed):
        return self.fc(packed.data).sum(0, keepdim=True)


def test_packed_sequences_stay_on_the_device():
    torch.manual_seed(0)
    model = Summed()
    packed = pack_sequence([torch.randn(length, 4) for length in (5, 3, 2)])
    targets = torch.randn(3, 2)
    mask = torch.tensor([True, False, True])
    results = []
    for device in (torch.device("cpu"), DEVICE):
        case = model.to(device), F.mse_loss, packed.to(device), targets.to(device)
        checked = gradients.func_gradients(*case, check=True)
        clipped = norms.clipped_sum(*case, 0.5, mask=mask.to(device))
        kernel = kernels.ntk(case[0], case[2])
        scale = noise.noise_scale(*case)
        found = [*checked.values(), *clipped.values(), kernel, torch.tensor(scale.noise)]
        results.append([tensor.cpu() for tensor in found])
    torch.testing.assert_close(results[1], results[0])


def convolutions(device: torch.device) -> zoo.Case:
    """Make a float32 network whose gradients are all of convolutions, and large."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Flatten()]
    model = nn.Sequential(*layers)
    case = zoo.Case(model, torch.rand(6, 1, 9, 9), torch.rand(6, 100), zoo.squared)
    return zoo.Case(model.to(device), *(x.to(device) for x in case.batch), case.loss_fn)


def test_norms_and_clipped_sums_do_not_depend_on_tf32():
    """No sample may add more than the limit, whatever the precision of products is set to."""
    cudnn = torch.backends.cudnn
    exact = norms.gradient_norms(*convolutions(torch.device("cpu")).args)
    before = cudnn.allow_tf32
    try:
        cudnn.allow_tf32 = True
        case = convolutions(DEVICE)
        found = on_cpu(norms.gradient_norms(*case.args))
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=0)
        limit = exact.min().item() / 2
        for index in range(6):
            one = slice(index, index + 1)
            sample = case.model, case.loss_fn, case.data[one], case.targets[one]
            total = norms.clipped_sum(*sample, limit)
            norm = torch.cat([t.flatten() for t in on_cpu(total).values()]).double().norm().item()
            assert limit * (1 - 1e-4) < norm <= limit
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the loop and `vmap` round alike
            gradients.func_gradients(*case.args, check=True)
        assert cudnn.allow_tf32
    finally:
        cudnn.allow_tf32 = before


def test_a_second_device_is_no_other_than_the_first():
    """The model lies on a device that is not the current one."""
    if PRETENDED or torch.accelerator.device_count() < 2:
        pytest.skip("torch differentiates on the first pretended device only")
    second = torch.device(DEVICE.type, 1)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).to(second)
    data, targets = torch.rand(4, 3, device=second), torch.rand(4, 2, device=second)
    with pytest.raises(ValueError, match="draws random numbers"):
        gradients.func_gradients(model, F.mse_loss, data, targets)
    case = model.eval(), F.mse_loss, data, targets
    expected = gradients.loop_gradients(*case)
    assert {tensor.device for tensor in expected.values()} == {second}
    torch.testing.assert_close(gradients.func_gradients(*case), expected)
    assert norms.gradient_norms(*case).device == second


@pytest.mark.parametrize("given", ["data", "targets", "model"])
@pytest.mark.parametrize("call", [gradients.func_gradients, norms.gradient_norms])
def test_what_lies_on_two_devices_is_refused(call, given):
    model, data, targets = nn.Linear(3, 2), torch.rand(4, 3), torch.rand(4, 2)
    elsewhere = {"data": DEVICE, "targets": DEVICE, "model": DEVICE}
    elsewhere[given] = torch.device("cpu")
    model = model.to(elsewhere["model"])
    batch = data.to(elsewhere["data"]), targets.to(elsewhere["targets"])
    with pytest.raises(ValueError, match=r"(is|are) on .* and .* on "):
        call(model, F.mse_loss, *batch)


def deep(layers: int) -> nn.Module:
    """Make a network of linear layers, each with a BatchNorm that has running statistics."""
    blocks = []
    for _ in range(layers):
        blocks += [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()]
    return nn.Sequential(*blocks).to(DEVICE).eval()


@in_pretence
@pytest.mark.parametrize("name", ["func_gradients", "gradient_norms", "clipped_sum"])
def test_the_cpu_waits_as_often_for_a_deep_network_as_for_a_shallow_one(name):
    calls = {
        "func_gradients": gradients.func_gradients,
        "gradient_norms": norms.gradient_norms,
        "clipped_sum": lambda *case: norms.clipped_sum(*case, 1.0),
    }
    waits = []
    for layers in (5, 50):
        data = torch.rand(4, 8, device=DEVICE)
        case = deep(layers), F.mse_loss, data, torch.rand(4, 8, device=DEVICE)
        pretend.WAITS["count"] = 0
        calls[name](*case)
        waits.append(pretend.WAITS["count"])
    assert waits[0] == waits[1] <= 10


def test_a_draw_on_the_models_device_is_noticed_if_the_data_lie_on_the_cpu():
    class Moves(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2, device=DEVICE)

        def forward(self, x):
            return F.dropout(self.fc(x.to(DEVICE)), training=True)

    data, targets = torch.rand(4, 3), torch.rand(4, 2)

    def loss_fn(outputs, target):
        return F.mse_loss(outputs, target.to(DEVICE))

    for call in (gradients.func_gradients, gradients.loop_gradients):
        with pytest.raises(ValueError, match="draws random numbers"):
            call(Moves(), loss_fn, data, targets)


def test_helpers_that_want_float64_run_where_there_is_none():
    case = moved(zoo.make("mlp"))
    assert noise.noise_scale(*case.args).noise > 0
    generator = torch.Generator(DEVICE).manual_seed(0)
    (batch,) = privacy.poisson_batches(100, 0.5, 1, generator)
    assert 20 < len(batch) < 80
    assert "nothing found" in str(limits.diagnose(*case.args))
