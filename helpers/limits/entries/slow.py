"""Slow entries: the values are right, and `vmap` falls back, or works more than it needs to."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from helpers.gradients import loop_gradients
from helpers.limits.bare import Case, bare_gradients, sequences
from helpers.limits.entry import Slow, raises, warns

_FALLBACK = "because we have not yet implemented the batching rule for aten::"


class Reader(nn.Module):
    """An LSTM over rows of ink, from a state made by `new_zeros`."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, 16, batch_first=True)
        self.fc = nn.Linear(16, 10)

    def forward(self, rows: Tensor) -> Tensor:
        start = rows.new_zeros(1, len(rows), 16)
        return self.fc(self.lstm(rows, (start, start))[0][:, -1])


def lstm(images: Tensor, labels: Tensor) -> Case:
    rows = sequences(images).float()
    return Case(Reader().to(rows), F.cross_entropy, rows, labels)


def lstm_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    rows = sequences(images).float()
    with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
        return bare_gradients(Reader().to(rows), F.cross_entropy, rows, labels)


class Attending(nn.Module):
    """Self-attention over rows of ink, without its weights as a result."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(28, 2, batch_first=True)
        self.fc = nn.Linear(28, 10)

    def forward(self, rows: Tensor) -> Tensor:
        mixed, _ = self.attention(rows, rows, rows, need_weights=False)
        return self.fc(mixed.mean(dim=1))


def attention(images: Tensor, labels: Tensor) -> Case:
    rows = sequences(images).float()
    return Case(Attending().to(rows), F.cross_entropy, rows, labels)


def attention_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    rows = sequences(images).float()
    with sdpa_kernel(SDPBackend.MATH):
        return bare_gradients(Attending().to(rows), F.cross_entropy, rows, labels)


def operator(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        hot = torch.zeros_like(z).scatter_(1, labels[:, None], 1.0)
        return -(z.log_softmax(dim=1) * hot).sum()

    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(images.device)
    return Case(model, loss_fn, images.float(), labels)


def _linear(loss_fn, images: Tensor, labels: Tensor) -> Case:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(images.device)
    return Case(model, loss_fn, images.float(), labels)


def _ctc(inputs, targets, images: Tensor, labels: Tensor) -> Case:
    """Read ten logits as ten steps of five symbols, with lengths in the form that is given."""

    def loss_fn(z, labels):
        steps = z.reshape(10, 1, 1) * torch.arange(5, device=z.device)
        symbols = torch.tensor([[1, 2]], device=z.device)
        return F.ctc_loss(steps.log_softmax(dim=2), symbols, inputs, targets)

    return _linear(loss_fn, images, labels)


def _unpooling(images: Tensor, labels: Tensor) -> Case:
    class Model(nn.Sequential):
        def forward(self, images):
            pooled, places = F.max_pool2d(images, 2, return_indices=True)
            return super().forward(F.max_unpool2d(pooled, places, 2))

    model = Model(nn.Flatten(), nn.Linear(784, 10)).to(images.device)
    return Case(model, F.cross_entropy, images.float(), labels)


def _encoder(images: Tensor, labels: Tensor) -> Case:
    rows = sequences(images).float()
    layer = nn.TransformerEncoderLayer(28, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(784, 10)).to(images.device)
    return Case(model, F.cross_entropy, rows, labels)


def operator_fixed(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        return -z.log_softmax(dim=1).gather(1, labels[:, None]).sum()

    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(images.device)
    return Case(model, loss_fn, images.float(), labels)


def _wide(images: Tensor) -> nn.Module:
    layers = nn.Flatten(), nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 10)
    return nn.Sequential(*layers).to(images)


def chunks(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    images = images.float()
    return bare_gradients(_wide(images), F.cross_entropy, images, labels, chunk_size=8)


def chunks_fixed(images: Tensor, labels: Tensor) -> Case:
    images = images.float()
    return Case(_wide(images), F.cross_entropy, images, labels)


def convolution(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    layers = nn.Conv2d(1, 16, 3), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, groups=16), nn.Flatten()
    model = nn.Sequential(*layers).to(images.device)
    return bare_gradients(model, _first_ten, images.float(), labels)


class Unfolded(nn.Conv2d):
    """A convolution with one channel for each group, as a matrix product over patches."""

    def forward(self, x: Tensor) -> Tensor:
        side = x.shape[-1] - 2
        patches = F.unfold(x, 3).reshape(len(x), self.groups, 9, side * side)
        product = torch.einsum("bgkl,gk->bgl", patches, self.weight.flatten(1))
        return product.reshape(len(x), -1, side, side) + self.bias[:, None, None]


def convolution_fixed(images: Tensor, labels: Tensor) -> Case:
    layers = nn.Conv2d(1, 16, 3), nn.MaxPool2d(2), Unfolded(16, 16, 3, groups=16), nn.Flatten()
    model = nn.Sequential(*layers).to(images.device)  # F.unfold, then a matrix product
    return Case(model, _first_ten, images.float(), labels)


def _first_ten(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs[:, :10], labels)


def _truth(broken):
    """Return the loop over the case of a broken side."""
    return lambda images, labels: loop_gradients(*broken(images, labels))


ENTRIES = [
    Slow(
        name="lstm-fallback",
        symptom=_FALLBACK + "mkldnn_rnn_layer",
        cause="On a CPU in float32, an LSTM is one fused operation, for which `vmap` has no "
        "batching rule: it runs the operation once for each sample.",
        fix="Switch the fused operation off, and hand in a state made with `new_zeros`.",
        broken=lstm,
        fixed=lstm_fixed,
        truth=_truth(lstm),
    ),
    Slow(
        name="fused-attention",
        symptom=_FALLBACK + "_scaled_dot_product_flash_attention_for_cpu",
        cause="On a CPU, fused attention is one operation without a batching rule.",
        also={
            "`nn.TransformerEncoderLayer` falls back too": lambda *few: warns(
                _FALLBACK + "_scaled_dot_product_flash", lambda: bare_gradients(*_encoder(*few))
            )
        },
        fix="`sdpa_kernel(SDPBackend.MATH)` around it. Models of Hugging Face take "
        '`attn_implementation="eager"` ([its documentation]'
        "(https://huggingface.co/docs/transformers/attention_interface)).",
        broken=attention,
        fixed=attention_fixed,
        truth=_truth(attention),
    ),
    Slow(
        name="operator-fallback",
        symptom=_FALLBACK,
        cause="An operation without a batching rule runs once for each sample, and the warning "
        "names it; here, `scatter_`. Some raise instead: `embedding-max-norm`, `sparse-embedding`.",
        also={
            "`multi_margin_loss` falls back": lambda *few: warns(
                _FALLBACK + "multi_margin_loss",
                lambda: bare_gradients(*_linear(F.multi_margin_loss, *few)),
            ),
            "`max_unpool2d` falls back": lambda *few: warns(
                _FALLBACK + "max_unpool2d", lambda: bare_gradients(*_unpooling(*few))
            ),
            "`ctc_loss` with lengths as tensors falls back": lambda *few: warns(
                _FALLBACK + "_ctc_loss",
                lambda: bare_gradients(*_ctc(torch.tensor([10]), torch.tensor([2]), *few)),
            ),
            "`ctc_loss` with lengths as Python numbers raises the message of `numpy-or-list`": (
                lambda *few: raises(
                    "Cannot access data pointer", lambda: bare_gradients(*_ctc((10,), (2,), *few))
                )
            ),
        },
        fix="Write it with operations that have a rule: `gather` in place of `scatter_`.",
        broken=operator,
        fixed=operator_fixed,
        truth=_truth(operator),
    ),
    Slow(
        name="chunks-concatenated",
        symptom="the result twice in memory",
        warns=False,
        cause="`chunk_size` of `vmap` computes the gradients in pieces, and copies all of them "
        "into one result. That of `func_gradients` writes each piece where it belongs.",
        fix="No chunks if the result fits; or reduce inside (a norm, a clipped sum), and keep "
        "little.",
        broken=chunks,
        fixed=chunks_fixed,
    ),
    Slow(
        name="grouped-convolution",
        symptom="a convolution with B times as many groups",
        warns=False,
        cause="The per-sample gradient of a convolution's weight is itself a convolution, with a "
        "group for each sample and each group of the layer ([Rochette et al., 2019]"
        "(https://arxiv.org/abs/1912.06015)). The lesson's table of ratios says whether that is "
        "slow here.",
        fix="A matrix product over `F.unfold`, if your measurement says so.",
        broken=convolution,
        fixed=convolution_fixed,
    ),
]
