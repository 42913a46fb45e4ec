"""The tasks: margins, how the loss depends on them, and what they refuse."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from helpers.model_outputs import ImageClassificationModelOutput, TextClassificationModelOutput
from tests.support.oracle import refused
from tests.support.zoo import Apply

IMAGES, TEXT = ImageClassificationModelOutput(), TextClassificationModelOutput()


def tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return dict(model.named_parameters()), dict(model.named_buffers())


@pytest.mark.parametrize("classes", [2, 10])
def test_the_margin_is_the_log_odds_and_the_loss_depends_on_it_by_minus_1_minus_p(classes):
    model = nn.Linear(4, classes).double()
    weights, buffers = tensors(model)
    inputs, labels = torch.randn(5, 4).double(), torch.arange(5) % classes
    logits = model(inputs).detach()

    def margin(x: Tensor, y: Tensor) -> Tensor:
        return IMAGES.get_output(model, weights, buffers, x, y)

    margins = vmap(margin)(inputs, labels)
    p = logits.softmax(1)[range(5), labels]
    torch.testing.assert_close(margins.detach(), torch.log(p / (1 - p)))
    margins = margins.detach().requires_grad_()
    losses = F.softplus(-margins)
    torch.testing.assert_close(losses, F.cross_entropy(logits, labels, reduction="none"))
    (slopes,) = torch.autograd.grad(losses.sum(), margins)
    loss_grads = IMAGES.get_out_to_loss_grad(model, weights, buffers, (inputs, labels))
    assert not loss_grads.requires_grad
    torch.testing.assert_close(loss_grads, -slopes[:, None])


def test_a_sure_network_keeps_its_digits():
    logits = torch.tensor([[30.0, 0.0], [0.0, 300.0], [-300.0, 0.0]])
    got = IMAGES.get_out_to_loss_grad(nn.Identity(), {}, {}, (logits, torch.tensor([0, 0, 1])))
    assert got[0].item() == pytest.approx(9.358e-14, rel=1e-2, abs=0)
    assert got[1].item() == 1
    assert 0 <= got[2].item() < 1e-30
    assert got.isfinite().all()


@pytest.mark.parametrize("returns", [lambda logits: logits, lambda z: SimpleNamespace(logits=z)])
def test_text_reaches_the_model_by_keyword(returns):
    class Text(nn.Module):
        def forward(self, **inputs: Tensor) -> object:
            calls.append(inputs)
            return returns(torch.eye(5)[: len(inputs["input_ids"])])

    calls: list[dict[str, Tensor]] = []
    ids, types, mask = torch.randint(9, (3, 2, 5))
    labels = torch.tensor([3, 0])
    one = TEXT.get_output(Text(), {}, {}, ids[0], types[0], mask[0], labels[0])
    loss_grads = TEXT.get_out_to_loss_grad(Text(), {}, {}, [ids, types, mask, labels])
    assert list(calls[0]) == ["input_ids", "token_type_ids", "attention_mask"]
    assert torch.equal(calls[1]["input_ids"], ids)
    assert torch.equal(calls[1]["token_type_ids"], types)
    assert torch.equal(calls[1]["attention_mask"], mask)
    torch.testing.assert_close(loss_grads[0, 0], torch.sigmoid(-one))


REFUSED = {  # by a word of the message, what the model returns, and the label
    "logits": (lambda m, x: x[:, :1], torch.tensor(0)),
    "tuple": (lambda m, x: (x,), torch.tensor(0)),
    "whole numbers": (lambda m, x: x, torch.tensor(1.0)),
    "(B,)": (lambda m, x: x, torch.tensor([1])),
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_has_no_margin_is_refused(word):
    run, label = REFUSED[word]
    with refused(word):
        IMAGES.get_output(Apply(run), {}, {}, torch.ones(3), label)
