"""What all functions of `helpers.gradients` refuse, each with one sentence."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import gradients
from helpers.transforms.randomness import RANDOMNESS
from tests.support.oracle import METHODS
from tests.support.zoo import Apply, make, squared

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


def refused(sentence: str, error: type[Exception] = ValueError):
    """Expect an error whose whole message is this sentence."""
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


DRAWS = [nn.Dropout(), nn.Dropout1d(), nn.AlphaDropout(), Apply(lambda m, x: x + torch.rand(2))]


@every_method
@pytest.mark.parametrize("layer", DRAWS, ids=["dropout", "dropout1d", "alpha", "noise"])
def test_random_numbers_are_refused(layer, method):
    case = make("linear")
    case.model = nn.Sequential(case.model, layer).double()
    with refused(RANDOMNESS):
        method(*case.args)
    lstm = make("lstm deep")
    lstm.model.layer.dropout = 0.5
    with refused(RANDOMNESS):
        method(*lstm.args)


@every_method
def test_what_is_no_model_is_refused(method):
    with refused("model must be a torch.nn.Module, got function", TypeError):
        method(lambda x: x, squared, torch.ones(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize("randomness", ["wrong", "SAME", None, True])
def test_an_unknown_randomness_is_refused(randomness):
    sentence = f"randomness must be 'error', 'different' or 'same', got {randomness!r}"
    with refused(sentence):
        gradients.func_gradients(*make("linear").args, randomness=randomness)


@pytest.mark.parametrize("chunk_size", [0, -1, "2", 2.0, True])
def test_a_chunk_that_holds_no_sample_is_refused(chunk_size):
    sentence = f"chunk_size must be None or a whole number, at least 1, got {chunk_size!r}"
    for batch_size in (0, 3):
        with refused(sentence):
            gradients.func_gradients(*make("linear", batch_size).args, chunk_size=chunk_size)


@every_method
@pytest.mark.parametrize("empty", [False, True])
def test_a_wrong_wrt_is_refused(empty, method):
    args = make("linear", 0 if empty else 3).args
    with refused("wrt must be several names, for example ['bias'], got one string", TypeError):
        method(*args, wrt="bias")
    unknown = "which is no parameter of this model: it has weight, bias"
    with refused(f"wrt names 'wieght', {unknown}"):
        method(*args, wrt=["bias", "wieght"])
    with refused(f"wrt names 'a', 'b', {unknown}"):
        method(*args, wrt=["a", "b"])


x, t = torch.zeros(3, 3), torch.zeros(3, 2)
BATCHES = [
    (x, t[:2], ValueError, "data and targets must have one batch size, got 3 and 2"),
    (x[:0], t, ValueError, "data and targets must have one batch size, got 0 and 3"),
    (x[0, 0], t, ValueError, "data must have a batch dimension, (B, ...), got shape ()"),
    (x, t[0, 0], ValueError, "targets must have a batch dimension, (B, ...), got shape ()"),
    (x.tolist(), t, TypeError, "data must be a tensor (B, ...), got list"),
    (x.numpy(), t, TypeError, "data must be a tensor (B, ...), got ndarray"),
    (x, t.tolist(), TypeError, "targets must be a tensor (B, ...), got list"),
    (x, None, TypeError, "targets must be a tensor (B, ...), got NoneType"),
]


@every_method
@pytest.mark.parametrize(("data", "targets", "error", "sentence"), BATCHES, ids=lambda v: "")
def test_a_wrong_batch_is_refused(data, targets, error, sentence, method):
    with refused(sentence, error):
        method(nn.Linear(3, 2), squared, data, targets)


LOSSES = [
    (lambda p, t: F.mse_loss(p, t, reduction="none"), "(1, 2)"),
    (lambda p, t: (p - t).sum(1), "(1,)"),
    (lambda p, t: ((p - t).sum(), p), "tuple"),
    (lambda p, t: 1.0, "float"),
    (lambda p, t: None, "NoneType"),
]


@every_method
@pytest.mark.parametrize(("loss_fn", "got"), LOSSES, ids=[got for _, got in LOSSES])
def test_a_loss_that_is_no_scalar_is_refused(loss_fn, got, method):
    sentence = (
        "loss_fn must return a scalar, a tensor of shape (), for a batch of one, "
        f"got {got}: reduction='sum' or 'mean' gives one"
    )
    with refused(sentence):
        method(nn.Linear(3, 2), loss_fn, x, t)


UNTRACKED = nn.BatchNorm1d(2, track_running_stats=False).eval()
NORMS = [nn.BatchNorm1d(2), UNTRACKED, nn.SyncBatchNorm(2)]


@every_method
@pytest.mark.parametrize("norm", NORMS, ids=["train", "eval without statistics", "sync"])
def test_batch_norm_in_training_mode_is_refused(norm, method):
    sentence = (
        "is BatchNorm in training mode: it mixes the samples of a batch, so the gradient of one "
        "sample alone is not defined; call model.eval() on a model with running statistics, or "
        "use GroupNorm"
    )
    for model, name in ((nn.Sequential(nn.Linear(3, 2), norm), "1"), (norm, "the model")):
        for batch in ((x, t), (x[:0], t[:0])):
            with refused(f"{name} {sentence}"):
                method(model, squared, *batch)


@every_method
def test_a_layer_without_a_shape_is_refused(method):
    sentence = (
        "1.weight belongs to a lazy layer that was never initialised, so it has no shape: run the "
        "model once on a batch first"
    )
    for size in (0, 3):
        with refused(sentence):
            method(nn.Sequential(nn.Tanh(), nn.LazyLinear(2)), squared, x[:size], t[:size])
