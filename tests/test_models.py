"""The networks of the lessons: what they take and give, and how large they are."""

import pytest
import torch
import torch.nn.functional as F

from helpers import gradients
from helpers.models import GPT, MLP, SimpleCNN

SIZES = {SimpleCNN: 1_199_882, MLP: 15_910}


@pytest.mark.parametrize("network", SIZES)
def test_a_sample_does_not_see_the_others_and_every_parameter_counts(network):
    torch.manual_seed(0)
    model, images = network(), torch.rand(3, 1, 28, 28)
    alone = torch.cat([model(image) for image in images.split(1)])
    logits = model(images)
    torch.testing.assert_close(logits, alone, rtol=1e-5, atol=1e-6)  # float32, sums in other orders
    assert torch.equal(model(images), logits)
    assert sum(parameter.numel() for parameter in model.parameters()) == SIZES[network]
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.any(), name


def test_the_language_model_runs_under_vmap_without_a_fallback(recwarn):
    def loss_fn(logits, targets):
        return F.cross_entropy(logits.mT, targets)

    tokens = torch.arange(31).unfold(0, 11, 10)
    gradients.func_gradients(GPT(), loss_fn, tokens[:, :-1], tokens[:, 1:])
    assert list(recwarn) == []


def test_a_token_of_the_language_model_sees_those_of_its_text_before_it_alone():
    assert sum(parameter.numel() for parameter in GPT().parameters()) == 169_728
    torch.manual_seed(0)
    model = GPT(vocabulary=20, context=9, width=8, heads=2, depth=2)
    tokens = torch.arange(9)[None]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    logits = model(tokens)
    for place in range(9):
        other = tokens.clone()
        other[0, place] = 15
        moved = (model(other) - logits).abs().amax(dim=2)[0]
        assert torch.equal(moved > 0, torch.arange(9) >= place)
    apart = model(tokens, torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 0]]))  # the last is of the first
    torch.testing.assert_close(apart[:, 5:8], model(tokens[:, 5:8]))
    torch.testing.assert_close(apart[:, [0, 1, 2, 3, 4, 8]], model(tokens[:, [0, 1, 2, 3, 4, 8]]))


def test_the_mlp_takes_rows_as_well():
    model, images = MLP(), torch.rand(3, 1, 28, 28)
    assert torch.equal(model(images.flatten(1)), model(images))
