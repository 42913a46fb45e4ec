"""The gradient noise scale, against covariances of gradients that exist, in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import benchmark, gradients
from helpers.noise import noise_scale
from tests.support.oracle import refused
from tests.support.zoo import make


@pytest.mark.parametrize("name", ["tied weight", "frozen", "cnn", "scalars"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:the samples were taken one after the other")
def test_it_is_trace_and_squared_norm(name):
    case = make(name)
    grads = case.pass_to(gradients.loop_gradients)
    rows = torch.cat([grad.reshape(len(grad), -1) for grad in grads.values()], dim=1)
    noise = rows.var(dim=0).sum().item()
    signal = rows.mean(0).square().sum().item() - noise / len(rows)
    found = case.pass_to(noise_scale)
    assert found.noise == pytest.approx(noise, rel=1e-9)
    assert found.signal == pytest.approx(signal)
    assert found.scale == (found.noise / found.signal if found.signal > 0 else math.inf)


def test_the_gradients_of_a_batch_are_never_there():
    model = nn.Sequential(nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 10))  # P = 164,410
    data, targets = torch.randn(512, 400), torch.randint(10, (512,))
    peak = benchmark.memory(lambda: noise_scale(model, F.cross_entropy, data, targets)).peak
    assert peak < 10 * 164_410 * 4  # the gradients would be 512


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("size", "apart"), [(1, 1e-4), (1e-6, 0.5)])
def test_small_differences_and_small_gradients_are_seen(size, apart, dtype):
    torch.manual_seed(0)
    slopes = (size * (1 + apart * torch.randn(256, 1))).to(dtype)
    model, ones = nn.Linear(1, 1, bias=False).to(dtype), torch.ones(256, 1, dtype=dtype)
    found = noise_scale(model, lambda z, t: (z * t).sum(), ones, slopes)
    noise = slopes.double().var().item()
    assert found.noise == pytest.approx(noise, rel=1e-5)
    assert found.signal == pytest.approx(slopes.double().mean().item() ** 2 - noise / 256, rel=1e-5)


def test_refused_in_one_sentence():
    case = make("linear", 5)
    x, y = case.batch
    with refused("got 1"):
        noise_scale(case.model, case.loss_fn, x[:1], y[:1])
    with refused("finite"):
        noise_scale(case.model, case.loss_fn, torch.cat([x[:3] * torch.inf, x[3:]]), y)
