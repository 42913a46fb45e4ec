"""Loud entries: the value of a sample decides a shape or an index."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.nn.utils.rnn import pack_padded_sequence

from helpers.limits.bare import Case, Classifier, sequences
from helpers.limits.entry import Loud, agree, alike, raises

_DECIDES = "attempting to use a Tensor in some data-dependent control flow"
_DYNAMIC = "We do not support batching operators that can output dynamic shape"


def mask(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        return z[z > 0].sum()

    return Case(Classifier().to(images), loss_fn, images, labels)


def mask_fixed(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        return torch.where(z > 0, z, 0.0).sum()

    return Case(Classifier().to(images), loss_fn, images, labels)


def nonzero(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) / len(images.nonzero())

    return Case(Model().to(images), F.cross_entropy, images, labels)


def nonzero_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) / (images != 0).sum(dim=(1, 2, 3))[:, None]

    return Case(Model().to(images), F.cross_entropy, images, labels)


def index(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        rows = zip(z.log_softmax(dim=1), labels, strict=True)
        return -sum(row[label] for row, label in rows)

    return Case(Classifier().to(images), loss_fn, images, labels)


def index_fixed(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        return -z.log_softmax(dim=1).gather(1, labels[:, None]).sum()

    return Case(Classifier().to(images), loss_fn, images, labels)


def _index_by_arange(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        return -z.log_softmax(dim=1)[torch.arange(len(z), device=z.device), labels].sum()

    return Case(Classifier().to(images), loss_fn, images, labels)


def _logits(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return images.flatten(1)[:, 300:310], labels


def _pick(z: Tensor, label: Tensor) -> Tensor:
    return z[label]


def _pick_by_one_hot(z: Tensor, label: Tensor) -> Tensor:
    return (z * F.one_hot(label, 10)).sum()


def one_hot(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        return -(z.log_softmax(dim=1) * F.one_hot(labels, 10)).sum()

    return Case(Classifier().to(images), loss_fn, images, labels)


def one_hot_fixed(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        hot = torch.arange(10, device=labels.device) == labels[:, None]
        return -(z.log_softmax(dim=1) * hot).sum()

    return Case(Classifier().to(images), loss_fn, images, labels)


class _LastState(nn.Module):
    """An LSTM over rows of ink, read at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, 6, batch_first=True)
        self.fc = nn.Linear(6, 10)


def packed(images: Tensor, labels: Tensor) -> Case:
    class Model(_LastState):
        def forward(self, rows):
            lengths = torch.full((len(rows),), 28)
            packed = pack_padded_sequence(rows, lengths, batch_first=True)
            return self.fc(self.lstm(packed)[1][0][-1])

    return Case(Model().to(images), F.cross_entropy, sequences(images), labels)


def packed_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(_LastState):
        def forward(self, rows):
            start = rows.new_zeros(1, len(rows), 6)
            return self.fc(self.lstm(rows, (start, start))[0][:, 27])  # the last real row

    return Case(Model().to(images), F.cross_entropy, sequences(images), labels)


ENTRIES = [
    Loud(
        name="boolean-mask",
        symptom="Attempting to batch over indexing with a boolean mask",
        cause="How many entries a mask keeps differs from sample to sample. The result would have "
        "no common shape.",
        fix="`torch.where(mask, x, 0.0)` keeps the shape.",
        broken=mask,
        fixed=mask_fixed,
    ),
    Loud(
        name="dynamic-shape",
        symptom=_DYNAMIC,
        cause="`nonzero` returns as many entries as it finds.",
        also={
            "`unique` raises the same": lambda images, labels: raises(
                _DYNAMIC, lambda: vmap(torch.unique)(images)
            )
        },
        fix="Count, weigh or mask over the full shape instead.",
        broken=nonzero,
        fixed=nonzero_fixed,
    ),
    Loud(
        name="index-by-target",
        symptom=_DECIDES,
        cause="`z[i]` with a tensor `i` of shape `()` reads it as a number, once there is a "
        "derivative to take.",
        also={
            "under plain `vmap` it runs": lambda images, labels: agree(
                vmap(_pick)(*_logits(images, labels)),
                _logits(images, labels)[0].gather(1, labels[:, None])[:, 0],
            ),
            "under `vmap(jacrev)` it raises the same": lambda *few: raises(
                _DECIDES, lambda: vmap(jacrev(_pick))(*_logits(*few))
            ),
            "`z[torch.arange(len(z)), labels]` is a way out too": lambda *few: alike(
                _index_by_arange, index_fixed, *few
            ),
        },
        fix="`gather`, or indices with a dimension, `z[torch.arange(len(z)), labels]`.",
        broken=index,
        fixed=index_fixed,
        functions=("__getitem__",),
    ),
    Loud(
        name="one-hot",
        symptom=_DECIDES,
        cause="`F.one_hot` looks at the values of its labels, to refuse negative ones. Under plain "
        "`vmap` it does not look, under `vmap(grad)` it has to.",
        also={
            "without transforms, a label of -1 is refused": lambda images, labels: raises(
                "must be non-negative", lambda: F.one_hot(-1 - labels, 10)
            ),
            "under plain `vmap`, it is not": lambda images, labels: (
                vmap(lambda label: F.one_hot(label, 10))(-1 - labels).shape == (len(labels), 10)
            ),
            "under `vmap(jacrev)` it raises the same": lambda *few: raises(
                _DECIDES, lambda: vmap(jacrev(_pick_by_one_hot))(*_logits(*few))
            ),
        },
        fix="Compare with all classes: `torch.arange(C) == labels[:, None]`.",
        broken=one_hot,
        fixed=one_hot_fixed,
        functions=("one_hot",),
    ),
    Loud(
        name="packed-sequence",
        symptom=_DECIDES,
        cause="A packed sequence is laid out by the lengths, which are values.",
        fix="Run over the padded sequence, and read each sample at its own length.",
        broken=packed,
        fixed=packed_fixed,
        functions=("_pack_padded_sequence",),
        at=lambda module: isinstance(module, nn.RNNBase),
    ),
]
