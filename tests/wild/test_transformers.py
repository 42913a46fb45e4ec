"""A language model of transformers, called as people call it: `model(**batch).loss`."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch.func import functional_call

from helpers import gradients, limits, noise, norms, privacy
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from helpers.model_outputs import AbstractModelOutput
from helpers.projection import project_batches
from tests.support.oracle import assert_equal

transformers = pytest.importorskip("transformers")
LENGTHS, LIMIT = (7, 4, 6, 3), 0.5
TOLERANCE = 1e-6  # transformers computes the loss in float32


def gpt(attention):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=37,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        use_cache=False,
        attn_implementation=attention,
    )
    return transformers.GPT2LMHeadModel(config).eval().double()


def padded(side):
    """Make a batch of texts, and the same texts without padding, each a batch of one."""
    generator = torch.Generator().manual_seed(1)
    rows = {"input_ids": [], "attention_mask": [], "position_ids": [], "labels": []}
    alone = []
    for length in LENGTHS:
        ids = torch.randint(1, 37, (length,), generator=generator)
        text = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(length),
            # What is in front of the first word is padding, or nothing: no loss for it.
            "labels": torch.cat([torch.tensor([-100]), ids[1:]]),
        }
        missing = max(LENGTHS) - length
        ends = (0, missing) if side == "right" else (missing, 0)
        for name, each in text.items():
            value = -100 if name == "labels" else 0
            rows[name].append(torch.nn.functional.pad(each, ends, value=value))
        alone.append({name: each[None] for name, each in text.items()})
    batch = {name: torch.stack(each) for name, each in rows.items()}
    return transformers.BatchEncoding(batch), alone


def loss_fn(out, _):
    return out.loss


class TextLoss(AbstractModelOutput):
    def get_output(self, model, weights, buffers, sample):
        one = {name: each[None] for name, each in sample.items()}
        return functional_call(model, (weights, buffers), (), one).loss

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        return functional_call(model, (weights, buffers), (), dict(batch)).loss.view(1, 1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_changes_nothing_in_any_helper(attention, side):
    model = gpt(attention)
    batch, texts = padded(side)
    truth = {name: [] for name, _ in model.named_parameters()}
    for text in texts:
        model.zero_grad()
        model(**text).loss.backward()
        for name, parameter in model.named_parameters():
            truth[name].append(parameter.grad)
    truth = {name: torch.stack(rows) for name, rows in truth.items()}
    model.zero_grad()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        gradients_are(truth, model, batch)
        reductions_are(truth, model, batch)
        computers_agree(truth, model, batch)
        diagnosis = limits.diagnose(model, loss_fn, batch)
    assert "equal for all" in diagnosis.conclusion
    if attention == "sdpa":
        assert heard, "its masks are chosen by their values, so the samples go one by one"
    else:
        assert not heard


def gradients_are(truth, model, batch):
    out = {name: torch.empty_like(rows) for name, rows in truth.items()}
    for got in (
        gradients.loop_gradients(model, loss_fn, batch),
        gradients.func_gradients(model, loss_fn, batch),
        gradients.func_gradients(model, loss_fn, batch, chunk_size=3),
        gradients.func_gradients(model, loss_fn, batch, chunk_size=3, out=out),
    ):
        assert_equal(got, truth, TOLERANCE)


def reductions_are(truth, model, batch):
    """Compare norms, clipped sums and the scale of the noise with those of the gradients."""
    lengths = torch.cat([rows.flatten(1) for rows in truth.values()], 1).norm(dim=1)
    found = norms.gradient_norms(model, loss_fn, batch)
    torch.testing.assert_close(found, lengths, rtol=TOLERANCE, atol=0)

    factors = (LIMIT / lengths).clamp(max=1)
    clipped = {}
    squared_sum = 0.0  # of the gradient of the batch
    for name, rows in truth.items():
        clipped[name] = torch.einsum("b,b...->...", factors, rows)
        squared_sum += rows.sum(0).square().sum().item()
    found = norms.clipped_sum(model, loss_fn, batch, limit=LIMIT)
    assert_equal(found, clipped, TOLERANCE)
    found = privacy.private_sum(model, loss_fn, batch, limit=LIMIT, noise_multiplier=0.0)
    assert_equal(found, clipped, TOLERANCE)

    # The trace of the covariance of gradients, without bias: B - 1 in the denominator.
    size = len(lengths)
    variance = (lengths.square().sum().item() - squared_sum / size) / (size - 1)
    assert noise.noise_scale(model, loss_fn, batch).noise == pytest.approx(variance)


def computers_agree(truth, model, batch):
    count = sum(parameter.numel() for parameter in model.parameters())
    features = []
    for kind in (FunctionalGradientComputer, IterativeGradientComputer):
        computer = kind(model, TextLoss(), count, torch.float64, "cpu")
        assert_equal(computer.compute_per_sample_grad(batch), truth, TOLERANCE)
        features.append(project_batches(computer, [batch], 8, kind="factored"))
    torch.testing.assert_close(features[0], features[1], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_the_page_on_fine_tuning_prints_what_it_says(capsys, monkeypatch, tmp_path):
    pytest.importorskip("peft")
    page = Path(__file__).parents[2] / "notebooks" / "fine_tuning.md"
    blocks = re.findall(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", page.read_text("utf-8"), re.DOTALL
    )
    assert len(blocks) == page.read_text("utf-8").count("```python")
    monkeypatch.chdir(tmp_path)  # the page saves models
    number = r"\d+\.\d+"
    names = {}
    for code, expected in blocks:
        exec(code, names)
        printed = capsys.readouterr().out
        assert re.sub(number, "", printed) == re.sub(number, "", expected)
        got = list(map(float, re.findall(number, printed)))
        wanted = list(map(float, re.findall(number, expected)))
        assert got == pytest.approx(wanted, abs=0.03)  # training differs between processors
