"""The helpers and the zoo on another device than the CPU, compared with the CPU.

`TEST_DEVICE=cuda pytest tests/support/device_cases.py` is for a machine that has one. Without
`TEST_DEVICE` it is the pretended accelerator, which changes the process that it is in; so this file
is not collected by itself, and `tests/tooling/test_pretend.py` runs it in a process of its own.
"""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import (
    curvature,
    devices,
    ensembles,
    gradients,
    jacobians,
    kernels,
    noise,
    norms,
    optimizers,
    privacy,
    projection,
)
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from helpers.model_outputs import ImageClassificationModelOutput
from helpers.models import MLP
from tests.support import ways, zoo

PRETENDED = "TEST_DEVICE" not in os.environ
if PRETENDED:
    import tests.support.pretend  # noqa: F401  (makes the device)
DEVICE = devices.resolve(os.environ.get("TEST_DEVICE", "pretend"))
on_another = pytest.mark.skipif(DEVICE.type == "cpu", reason="about a device beside the CPU")
on_pretended = pytest.mark.skipif(not PRETENDED, reason="about the pretended accelerator")

pytestmark = pytest.mark.filterwarnings("ignore")


def moved(case: zoo.Case) -> zoo.Case:
    """Put a case on the device."""
    data, targets = (tensor.to(DEVICE) for tensor in case.batch)
    return zoo.Case(case.model.to(DEVICE), data, targets, case.loss_fn)


def on_cpu(result):
    """Bring results back, and say so if they were not on the device."""
    if isinstance(result, dict):
        return {name: on_cpu(tensor) for name, tensor in result.items()}
    assert result.device == DEVICE
    return result.cpu()


WAYS = {name: ways.WAYS[name].compute for name in ("loop", "func", "func, chunks", "norms")}
WAYS |= {
    "functorch": ways.LEGACY["functorch"].compute,
    "clipped sum": lambda case, _: norms.clipped_sum(*case.args, limit=0.5),
    "func Jacobians": lambda case, _: jacobians.func_jacobians(
        nn.Sequential(case.model, nn.Flatten()), case.data
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name for name in zoo.MODELS if name not in zoo.RECURRENCES])
def test_the_zoo_is_as_on_the_cpu(name, way):
    compute = WAYS[way]
    try:
        expected = compute(zoo.make(name), None)
    except (ValueError, NotImplementedError) as refusal:
        with pytest.raises(type(refusal)):
            compute(moved(zoo.make(name)), None)
        return
    torch.testing.assert_close(
        on_cpu(compute(moved(zoo.make(name)), None)), expected, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("kind", ["rademacher", "sparse", "factored"])
@pytest.mark.parametrize("computer", [FunctionalGradientComputer, IterativeGradientComputer])
def test_computers_and_projection_are_as_on_the_cpu(computer, kind):
    def features(device):
        devices.make_repeatable(0)
        model = MLP()
        count = sum(parameter.numel() for parameter in model.parameters())
        data, targets = torch.rand(6, 1, 28, 28), torch.arange(6)
        task = ImageClassificationModelOutput()
        made = computer(model.to(device), task, count, torch.float32, device)
        batch = (data.to(device), targets.to(device))
        return projection.project_batches(made, [batch], 16, kind=kind, seed=3)

    torch.testing.assert_close(
        features(DEVICE).cpu(), features(torch.device("cpu")), rtol=1e-5, atol=1e-6
    )


def test_noise_scale_and_curvature_are_as_on_the_cpu():
    case, there = zoo.make("cnn"), moved(zoo.make("cnn"))
    scales = [noise.noise_scale(*each.args) for each in (case, there)]
    assert scales[0].noise == pytest.approx(scales[1].noise, rel=1e-9)
    assert scales[0].signal == pytest.approx(scales[1].signal, rel=1e-9)
    vectors = [
        {name: torch.ones_like(p) for name, p in each.model.named_parameters()}
        for each in (case, there)
    ]
    here, other = (
        curvature.gauss_newton_product(*each.args, vector)
        for each, vector in zip((case, there), vectors, strict=True)
    )
    torch.testing.assert_close(on_cpu(other), here, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", ["jacobian", "vector", "structured"])
def test_kernels_are_as_on_the_cpu(method):
    case, there = zoo.make("cnn"), moved(zoo.make("cnn"))
    results = []
    for each in (case, there):
        theta = kernels.ntk(each.model, each.data[:2], method=method, chunk_size=1)
        alpha = kernels.solve(theta, torch.ones_like(theta[0, :, :, 0]), ridge=1.0)
        results.append((theta, alpha))
    for here, other in zip(*results, strict=True):
        torch.testing.assert_close(on_cpu(other), here, rtol=1e-8, atol=1e-10)


def test_ensembles_are_as_on_the_cpu():
    def trained(device):
        images, labels = torch.rand(8, 5).to(device), torch.arange(8).to(device) % 3
        torch.manual_seed(1)
        order = torch.randint(8, (2, 4, 3)).to(device)
        made = ensembles.initialise(lambda: nn.Linear(5, 3).to(device), [0, 1])
        step = optimizers.sgd_step
        made = ensembles.train(made, F.cross_entropy, images, labels, order, step, lr=0.1)
        return ensembles.predict(made, images)

    torch.manual_seed(0)
    expected = trained(torch.device("cpu"))
    torch.manual_seed(0)
    torch.testing.assert_close(on_cpu(trained(DEVICE)), expected, rtol=1e-5, atol=1e-6)


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


@on_another
def test_noise_of_a_generator_on_the_cpu_is_refused():
    case = moved(zoo.make("cnn"))
    options = {"limit": 0.5, "noise_multiplier": 2.0, "generator": torch.Generator()}
    with pytest.raises(ValueError, match="generator is on cpu and"):
        privacy.private_sum(*case.args, **options)


@on_pretended
def test_it_is_what_auto_means():
    assert devices.resolve("auto") == devices.resolve("pretend") == DEVICE


# Planted faults: a tensor on the CPU where the device's is wanted.


def made_on_the_cpu_in_the_forward(m, x):
    return m.fc(x + torch.zeros(3, dtype=x.dtype))


class OnTheCpuInBackward(torch.autograd.Function):
    """The identity, with a backward that was tried on a CPU only."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.ones(grad.shape, dtype=grad.dtype)

    generate_vmap_rule = True


FORWARDS = {
    "a tensor in the forward": made_on_the_cpu_in_the_forward,
    "a tensor in the backward": lambda m, x: m.fc(OnTheCpuInBackward.apply(m.fc2(x))),
    "a mask": lambda m, x: m.fc(torch.where(torch.ones(3) > 0, x, 0 * x)),
}


@on_another
@pytest.mark.parametrize("way", ["loop", "func", "norms"])
@pytest.mark.parametrize("fault", FORWARDS)
def test_a_fault_in_a_model_is_caught(fault, way):
    def case(device):
        torch.manual_seed(0)
        model = zoo.Apply(FORWARDS[fault], fc=nn.Linear(3, 2), fc2=nn.Linear(3, 3)).double()
        data, targets = torch.rand(4, 3).double(), torch.rand(4, 2).double()
        return zoo.Case(model.to(device), data.to(device), targets.to(device), zoo.squared)

    WAYS[way](case("cpu"), None)  # nothing is wrong there
    with pytest.raises(RuntimeError, match="same device"):
        WAYS[way](case(DEVICE), None)


@on_another
def test_targets_left_on_the_cpu_are_caught():
    case = moved(zoo.make("linear"))
    with pytest.raises((RuntimeError, ValueError), match="device"):
        gradients.func_gradients(case.model, F.mse_loss, case.data, case.targets.cpu())


@on_another
def test_numpy_without_cpu_is_caught():
    with pytest.raises(TypeError, match=r"Tensor.cpu\(\)"):
        torch.ones(3, device=DEVICE).numpy()


@on_another
def test_a_generator_of_the_cpu_is_caught():
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())
    ours = torch.Generator(device=DEVICE).manual_seed(1)
    assert torch.rand(3, device=DEVICE, generator=ours).device == DEVICE


# Random streams.


def dropout(randomness, chunk_size, batch=6):
    """Gradients of one sample, `batch` times, under dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1)).to(DEVICE)
    data = torch.ones(batch, 40, device=DEVICE)
    targets = torch.zeros(batch, 1, device=DEVICE)
    options = {"randomness": randomness, "chunk_size": chunk_size}
    return on_cpu(gradients.func_gradients(model, zoo.squared, data, targets, **options))


@pytest.mark.parametrize("chunk_size", [None, 2, 1])
def test_same_is_the_same_in_all_chunks(chunk_size):
    weights = dropout("same", chunk_size)["1.weight"].flatten(1)
    assert all(torch.equal(row != 0, weights[0] != 0) for row in weights)


@pytest.mark.parametrize("chunk_size", [None, 2, 1])
def test_different_differs_in_all_chunks(chunk_size):
    weights = dropout("different", chunk_size)["1.weight"].flatten(1)
    assert len({tuple(row) for row in (weights != 0).tolist()}) == len(weights)


@on_another
def test_the_streams_do_not_touch_each_other():
    torch.manual_seed(0)
    first = torch.rand(3)
    torch.manual_seed(0)
    own = torch.rand(3, device=DEVICE)
    assert torch.equal(torch.rand(3), first)
    torch.manual_seed(0)
    torch.rand(5)
    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), own.cpu())


def test_a_forward_that_draws_is_refused():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)).to(DEVICE)
    data = torch.ones(2, 3, device=DEVICE)
    targets = torch.zeros(2, 1, device=DEVICE)
    for compute in (gradients.loop_gradients, gradients.func_gradients):
        with pytest.raises(ValueError, match="draws random numbers"):
            compute(model, zoo.squared, data, targets)
