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
    sizes = {"vocab_size": 37, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, use_cache=False, attn_implementation=attention)
    return transformers.GPT2LMHeadModel(config).eval().double()


def padded(side):
    """Make a batch of texts, and the same texts without padding."""
    generator = torch.Generator().manual_seed(1)
    texts = []
    for length in LENGTHS:
        ids = torch.randint(1, 37, (length,), generator=generator)
        labels = torch.cat([torch.tensor([-100]), ids[1:]])  # before it is padding, or nothing
        text = {"input_ids": ids, "attention_mask": ids > 0, "position_ids": torch.arange(length)}
        texts.append({name: each.long() for name, each in text.items()} | {"labels": labels})

    def pad(name, each):
        ends = (0, max(LENGTHS) - len(each))[:: 1 if side == "right" else -1]
        return torch.nn.functional.pad(each, ends, value=-100 if name == "labels" else 0)

    batch = {name: torch.stack([pad(name, text[name]) for text in texts]) for name in texts[0]}
    alone = [{name: each[None] for name, each in text.items()} for text in texts]
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
    model, (batch, texts) = gpt(attention), padded(side)
    names, leaves = zip(*model.named_parameters(), strict=True)
    rows = [torch.autograd.grad(model(**text).loss, leaves) for text in texts]
    truth = dict(zip(names, map(torch.stack, zip(*rows, strict=True)), strict=True))
    lengths = torch.cat([each.flatten(1) for each in truth.values()], 1).norm(dim=1)
    args, kinds = (model, loss_fn, batch), (FunctionalGradientComputer, IterativeGradientComputer)
    factors = (LIMIT / lengths).clamp(max=1)
    clipped = {n: torch.einsum("b,b...->...", factors, each) for n, each in truth.items()}
    count = sum(leaf.numel() for leaf in leaves)
    computers = [kind(model, TextLoss(), count, torch.float64, "cpu") for kind in kinds]
    out = {name: torch.empty_like(each) for name, each in truth.items()}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for got in (
            gradients.loop_gradients(*args),
            gradients.func_gradients(*args),
            gradients.func_gradients(*args, chunk_size=3),
            gradients.func_gradients(*args, chunk_size=3, out=out),
            *(computer.compute_per_sample_grad(batch) for computer in computers),
        ):
            assert_equal(got, truth, TOLERANCE)
        private = {"limit": LIMIT, "noise_multiplier": 0.0}
        torch.testing.assert_close(norms.gradient_norms(*args), lengths, rtol=TOLERANCE, atol=0)
        assert_equal(norms.clipped_sum(*args, limit=LIMIT), clipped, TOLERANCE)
        assert_equal(privacy.private_sum(*args, **private), clipped, TOLERANCE)
        total = sum(each.sum(0).square().sum() for each in truth.values()) / 4
        expected = ((lengths.square().sum() - total) / 3).item()
        assert noise.noise_scale(*args).noise == pytest.approx(expected)
        features = [project_batches(each, [batch], 8, kind="factored") for each in computers]
        torch.testing.assert_close(*features, rtol=TOLERANCE, atol=TOLERANCE)
        assert "equal for all" in limits.diagnose(*args).conclusion
    assert bool(heard) == (attention == "sdpa"), "its masks are chosen by their values"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_the_page_on_fine_tuning_prints_what_it_says(capsys, monkeypatch, tmp_path):
    pytest.importorskip("peft")
    page = Path(__file__).parents[2] / "notebooks" / "fine_tuning.md"
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == page.read_text().count("```python")
    monkeypatch.chdir(tmp_path)  # the page saves models
    number, names = r"\d+\.\d+", {}
    for code, expected in blocks:
        exec(code, names)
        printed = capsys.readouterr().out
        assert re.sub(number, "", printed) == re.sub(number, "", expected)
        got, wanted = ([float(n) for n in re.findall(number, t)] for t in (printed, expected))
        assert got == pytest.approx(wanted, abs=0.03)  # training differs between processors
