"""Slow entries: the values are right, and `vmap` falls back, or works more than it needs to."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from helpers.gradients import loop_gradients
from helpers.limits.bare import Case, bare_gradients, sequences
from helpers.limits.entry import Slow

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
        cause="On a CPU in float32, LSTM is one fused operation, which `vmap` cannot batch, "
        "and runs once for each sample.",
        fix="Switch the fused operation off, and hand in a state made with `new_zeros`.",
        broken=lstm,
        fixed=lstm_fixed,
        truth=_truth(lstm),
    ),
    Slow(
        name="fused-attention",
        symptom=_FALLBACK + "_scaled_dot_product_flash_attention_for_cpu",
        cause="Fused attention is one operation, which `vmap` runs once for each sample. So do "
        "encoder layers of `nn.Transformer`, and models of Hugging Face.",
        fix="`sdpa_kernel(SDPBackend.MATH)` around it; in Hugging Face, "
        '`attn_implementation="eager"`.',
        broken=attention,
        fixed=attention_fixed,
        truth=_truth(attention),
    ),
    Slow(
        name="operator-fallback",
        symptom=_FALLBACK,
        cause="Any operation without a batching rule runs once for each sample; the warning names "
        "it. `scatter_`, `ctc_loss`, `max_unpool2d` and `multi_margin_loss` are among them.",
        fix="Write it with operations that have a rule: `gather` in place of `scatter_`.",
        broken=operator,
        fixed=operator_fixed,
        truth=_truth(operator),
    ),
    Slow(
        name="chunks-concatenated",
        symptom="the result twice in memory",
        warns=False,
        cause="`chunk_size` computes the gradients in pieces, and copies all of them into one "
        "result.",
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
        "group for each sample and each group of the layer. Whether that is slow depends on the "
        "device.",
        fix="A matrix product over `F.unfold`, if your measurement says so.",
        broken=convolution,
        fixed=convolution_fixed,
    ),
]
