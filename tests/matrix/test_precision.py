"""Reduced precision as people use it: values within it, and sums in float32 or wider."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import gradients, norms, privacy

SMOOTH = 0.03  # of the largest entry: a few roundings of 2**-8, bfloat16's
LIMIT = 0.5


def network() -> nn.Module:
    torch.manual_seed(0)
    # Tanh, since a unit near zero passes a ReLU in one precision and not in another.
    return nn.Sequential(nn.Linear(20, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 5))


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return torch.randn(6, 20), torch.arange(6) % 5


def off(found, exact) -> float:
    """Return the largest error of any parameter, over its largest entry."""
    errors = []
    for name, expected in exact.items():
        error = (found[name].float() - expected).abs().max() / expected.abs().max()
        errors.append(error.item())
    return max(errors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision(dtype, batch):
    data, labels = batch
    exact = gradients.loop_gradients(network(), F.cross_entropy, data, labels)
    exact_norms = norms.gradient_norms(network(), F.cross_entropy, data, labels)
    exact_sum = norms.clipped_sum(network(), F.cross_entropy, data, labels, LIMIT)

    case = network().to(dtype), F.cross_entropy, data.to(dtype), labels
    found = gradients.func_gradients(*case)
    assert {tensor.dtype for tensor in found.values()} == {dtype}
    assert off(found, exact) < SMOOTH
    found_norms = norms.gradient_norms(*case)
    assert found_norms.dtype == torch.float32
    torch.testing.assert_close(found_norms, exact_norms, rtol=SMOOTH, atol=0)
    found_sum = norms.clipped_sum(*case, LIMIT)
    assert {tensor.dtype for tensor in found_sum.values()} == {torch.float32}
    assert off(found_sum, exact_sum) < SMOOTH
    noisy = privacy.private_sum(*case, limit=LIMIT, noise_multiplier=1.0)
    assert {tensor.dtype for tensor in noisy.values()} == {torch.float32}


@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_the_calls_of_float32_weights(dtype, batch):
    model = network()
    case = model, F.cross_entropy, *batch
    exact, exact_norms = gradients.loop_gradients(*case), norms.gradient_norms(*case)
    with torch.autocast("cpu", dtype):
        found, found_norms = gradients.func_gradients(*case), norms.gradient_norms(*case)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == dtype
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert off(found, exact) < SMOOTH
    torch.testing.assert_close(found_norms, exact_norms, rtol=SMOOTH, atol=0)


@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
def test_a_scaled_loss_has_scaled_gradients(batch):
    """Of float16 autocast with a scaler: divide by its scale before clipping."""
    model = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    exact = norms.gradient_norms(model, F.cross_entropy, *batch)

    def scaled_loss(logits, labels):
        return scaler.scale(F.cross_entropy(logits, labels))

    with torch.autocast("cpu", torch.float16):
        found = norms.gradient_norms(model, scaled_loss, *batch)
        total = norms.clipped_sum(model, scaled_loss, *batch, LIMIT * scaler.get_scale())
    torch.testing.assert_close(found / scaler.get_scale(), exact, rtol=SMOOTH, atol=0)
    clipped = norms.clipped_sum(model, F.cross_entropy, *batch, LIMIT)
    unscaled = {name: tensor / scaler.get_scale() for name, tensor in total.items()}
    assert off(unscaled, clipped) < SMOOTH


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_lower_precision_of_products_does_not_reach_norms(precision, batch):
    case = network(), F.cross_entropy, *batch
    exact = norms.gradient_norms(*case)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert torch.equal(norms.gradient_norms(*case), exact)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
