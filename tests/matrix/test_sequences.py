"""Samples of unequal length: bags of words, and packed sequences, against a loop by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from helpers import gradients, jacobians, kernels, limits, noise, norms, privacy
from helpers.transforms.fallback import FallbackWarning
from tests.support.oracle import TOLERANCE, assert_equal, refused


def rows_of(model, losses):
    """Stack the gradients of each of some losses, by name."""
    rows = {name: [] for name, _ in model.named_parameters()}
    for loss in losses:
        model.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            rows[name].append(parameter.grad)
    model.zero_grad()
    return {name: torch.stack(each) for name, each in rows.items()}


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
    losses = []
    for i, (words, factors) in enumerate(zip(text.split(sizes), weights.split(sizes), strict=True)):
        bag = (model.bag.weight[words] * factors[:, None]).sum(0)
        losses.append(F.cross_entropy(model.fc(bag), targets[i]))
    expected = rows_of(model, losses)
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    if not last:
        offsets = offsets[:-1]
    for batch in (
        (text, offsets, weights),
        {"text": text, "offsets": offsets, "per_sample_weights": weights},
    ):
        got = gradients.loop_gradients(model, F.cross_entropy, batch, targets)
        assert_equal(got, expected, TOLERANCE)
        with pytest.warns(FallbackWarning, match="unequal length"):
            got = gradients.func_gradients(model, F.cross_entropy, batch, targets, chunk_size=3)
        assert_equal(got, expected, TOLERANCE)
    with refused("offsets must start at 0"):
        wrong = text, offsets + 1, weights
        gradients.func_gradients(model, F.cross_entropy, wrong, targets)


def test_sequences_of_unequal_length_in_the_order_in_which_they_were_packed():
    model = nn.LSTM(3, 2).double()
    sequences = [torch.randn(length, 3, dtype=torch.float64) for length in (2, 4, 1)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    targets = torch.randn(3, 2).double()

    def loss_fn(outputs, target):
        """Compare the last hidden state of an LSTM."""
        output, (hidden, _) = outputs
        assert isinstance(output, PackedSequence)
        return F.mse_loss(hidden[0], target)

    losses = []
    for sequence, target in zip(sequences, targets, strict=True):
        _, (hidden, _) = model(sequence)
        losses.append(F.mse_loss(hidden[0], target))
    expected = rows_of(model, losses)
    got = gradients.loop_gradients(model, loss_fn, packed, targets)
    assert_equal(got, expected, TOLERANCE)
    out = {name: torch.empty_like(rows) for name, rows in expected.items()}
    with pytest.warns(FallbackWarning, match="unequal length"):
        got = gradients.func_gradients(model, loss_fn, packed, targets, chunk_size=2, out=out)
    assert_equal(got, expected, TOLERANCE)
    flat = torch.cat([rows.flatten(1) for rows in expected.values()], dim=1)
    limit = 2 * flat.norm(dim=1).max().item()  # which clips none
    totals = {name: rows.sum(0) for name, rows in expected.items()}
    with pytest.warns(FallbackWarning, match="unequal length"):
        got = norms.clipped_sum(model, loss_fn, packed, targets, limit, chunk_size=2)
    assert_equal(got, totals, TOLERANCE)
    with pytest.warns(FallbackWarning, match="unequal length"):
        scale = noise.noise_scale(model, loss_fn, packed, targets)
    spread = (flat - flat.mean(0)).square().sum().item() / 2
    assert scale.noise == pytest.approx(spread)
    with pytest.warns(FallbackWarning, match="unequal length"):
        private = privacy.private_sum(
            model, loss_fn, packed, targets, limit=limit, noise_multiplier=0.0
        )
    assert_equal({name: total.double() for name, total in private.items()}, totals, 1e-6)
    with refused("3 and 2"):
        gradients.func_gradients(model, loss_fn, packed, targets[:2])


@pytest.mark.filterwarnings("ignore:the samples were taken one after the other")
def test_sequences_in_the_other_helpers():
    model = nn.EmbeddingBag(9, 2, mode="sum").double()
    bags = (torch.tensor([1, 2, 1, 5]), torch.tensor([0, 3]))  # words 1, 2, 1; word 5
    counts = torch.zeros(2, 9, dtype=torch.float64)
    counts[0, 1], counts[0, 2], counts[1, 5] = 2, 1, 1
    expected = torch.einsum("bw,yz->bywz", counts, torch.eye(2, dtype=torch.float64))
    with pytest.warns(FallbackWarning, match="unequal length"):
        assert torch.equal(jacobians.func_jacobians(model, bags), expected.flatten(2))
    kernel = torch.einsum("iywz,jvwz->ijyv", expected, expected)
    with pytest.warns(FallbackWarning, match="unequal length"):
        assert torch.equal(kernels.ntk(model, bags), kernel)

    def loss_fn(outputs, _):
        return outputs.sum()

    lengths = (2 * counts.square().sum(1)).sqrt()
    with pytest.warns(FallbackWarning, match="unequal length"):
        found = norms.gradient_norms(model, loss_fn, bags, chunk_size=1)
    torch.testing.assert_close(found, lengths)
    diagnosis = limits.diagnose(model, loss_fn, bags)
    assert "equal for all 1 parameters" in diagnosis.conclusion
    assert [each.entry for each in diagnosis.findings] == ["data-dependent"]
