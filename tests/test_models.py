"""The networks of the lessons: what they take and give, and how large they are."""

import pytest
import torch
import torch.nn.functional as F

from helpers import gradients
from helpers.models import MLP, SimpleCNN, SmallTransformer

SIZES = {SimpleCNN: 1_199_882, MLP: 15_910, SmallTransformer: 26_842}
every = pytest.mark.parametrize("network", SIZES)


@every
def test_a_sample_does_not_see_the_others_and_every_parameter_counts(network):
    torch.manual_seed(0)
    model, images = network(), torch.rand(3, 1, 28, 28)
    alone = torch.cat([model(image) for image in images.split(1)])
    logits = model(images)
    torch.testing.assert_close(logits, alone, rtol=1e-5, atol=1e-6)  # float32, sums in other orders
    assert torch.equal(model(images), logits)
    assert sum(parameter.numel() for parameter in model.parameters()) == SIZES[network]
    logits.square().sum().backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


def test_the_transformer_runs_under_vmap_without_a_fallback(recwarn):
    model, images = SmallTransformer(), torch.rand(3, 1, 28, 28)
    gradients.func_gradients(model, F.cross_entropy, images, torch.tensor([1, 2, 3]))
    assert [str(warning.message) for warning in recwarn] == []


def test_the_mlp_takes_rows_as_well():
    model, images = MLP(), torch.rand(3, 1, 28, 28)
    assert torch.equal(model(images.flatten(1)), model(images))
