"""Samples of unequal length: bags of words, and packed sequences, against a loop by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from helpers import gradients, jacobians, kernels, limits, norms
from helpers.transforms.fallback import FallbackWarning
from tests.support.oracle import TOLERANCE, assert_equal, refused


def rows_of(model, losses):
    params = dict(model.named_parameters())
    rows = [torch.autograd.grad(loss, [*params.values()]) for loss in losses]
    return dict(zip(params, map(torch.stack, zip(*rows, strict=True)), strict=True))


class Bags(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.bag, self.fc = nn.EmbeddingBag(9, 3, **options), nn.Linear(3, 2)

    def forward(self, text, offsets, per_sample_weights=None):
        return self.fc(self.bag(text, offsets, per_sample_weights))


# Texts of 2, 0, 1 and 3 words; six words, or as many as there are texts.
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("sizes", [[2, 0, 1, 3], [0, 3, 1, 0]], ids=str)
def test_bags_of_words(sizes, last):
    model = Bags(mode="sum", include_last_offset=last).double()
    text, targets = torch.randint(9, (sum(sizes),)), torch.randint(2, (4,))
    weights = torch.rand(len(text), dtype=torch.float64)
    pairs = zip(text.split(sizes), weights.split(sizes), strict=True)
    bags = [(model.bag.weight[words] * its[:, None]).sum(0) for words, its in pairs]
    expected = rows_of(model, map(F.cross_entropy, map(model.fc, bags), targets))
    offsets = torch.tensor([0, *sizes]).cumsum(0)[: None if last else -1]
    args = {"text": text, "offsets": offsets, "per_sample_weights": weights}
    for batch in (tuple(args.values()), args):
        case = model, F.cross_entropy, batch, targets
        assert_equal(gradients.loop_gradients(*case), expected, TOLERANCE)
        with pytest.warns(FallbackWarning, match="unequal length"):
            got = gradients.func_gradients(*case, chunk_size=3)
        assert_equal(got, expected, TOLERANCE)
    with refused("offsets must start at 0"):
        gradients.func_gradients(*case[:2], (text, offsets + 1, weights), targets)


def test_sequences_of_unequal_length_in_the_order_in_which_they_were_packed():
    model = nn.LSTM(3, 2).double()
    sequences = [torch.randn(length, 3, dtype=torch.float64) for length in (2, 4, 1)]
    packed, targets = pack_sequence(sequences, enforce_sorted=False), torch.randn(3, 2).double()

    def loss_fn(outputs, target):
        assert isinstance(outputs[0], PackedSequence)
        return F.mse_loss(outputs[1][0][0], target)

    last = [model(sequence)[1][0][0] for sequence in sequences]
    expected = rows_of(model, map(F.mse_loss, last, targets))
    args = (model, loss_fn, packed, targets)
    out = {name: torch.empty_like(rows) for name, rows in expected.items()}
    assert_equal(gradients.loop_gradients(*args), expected, TOLERANCE)
    with pytest.warns(FallbackWarning, match="unequal length"):
        assert_equal(gradients.func_gradients(*args, chunk_size=2, out=out), expected, TOLERANCE)
    with refused("3 and 2"):
        gradients.func_gradients(*args[:3], targets[:2])


@pytest.mark.filterwarnings("ignore:the samples were taken one after the other")
def test_sequences_in_the_other_helpers():
    model = nn.EmbeddingBag(9, 2, mode="sum").double()
    bags = (torch.tensor([1, 2, 1, 5]), torch.tensor([0, 3]))  # words 1, 2, 1; word 5
    counts = torch.zeros(2, 9, dtype=torch.float64)
    counts[0, 1], counts[0, 2], counts[1, 5] = 2, 1, 1
    expected = torch.einsum("bw,yz->bywz", counts, torch.eye(2, dtype=torch.float64))
    assert torch.equal(jacobians.func_jacobians(model, bags), expected.flatten(2))
    kernel = torch.einsum("iywz,jvwz->ijyv", expected, expected)
    assert torch.equal(kernels.ntk(model, bags), kernel)
    args = (model, lambda out, _: out.sum(), bags)
    lengths = (2 * counts.square().sum(1)).sqrt()
    torch.testing.assert_close(norms.gradient_norms(*args, chunk_size=1), lengths)
    diagnosis = limits.diagnose(*args)
    assert "equal for all 1 parameters" in diagnosis.conclusion
    assert [each.entry for each in diagnosis.findings] == ["data-dependent"]
