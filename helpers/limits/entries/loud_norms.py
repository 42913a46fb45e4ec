"""Loud entries: normalisation layers, and what else writes into buffers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from helpers.limits.bare import Case, Classifier
from helpers.limits.entry import Loud, raises

BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
INSTANCE_NORMS = nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d
_ONE = "Expected more than 1 value per channel when training"
_NORM = "running_mean or running_var, which will be updated in place, were not batched"


def _conv_net(norm: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(144, 10)
    )


def batch_norm(images: Tensor, labels: Tensor) -> Case:
    model = _conv_net(nn.BatchNorm2d(4)).to(images)
    return Case(model, F.cross_entropy, images, labels)


def batch_norm_fixed(images: Tensor, labels: Tensor) -> Case:
    model = _conv_net(nn.GroupNorm(2, 4)).to(images)  # or BatchNorm2d and model.eval()
    return Case(model, F.cross_entropy, images, labels)


def batch_norm_of_one(images: Tensor, labels: Tensor) -> Case:
    model = nn.Sequential(Classifier(), nn.BatchNorm1d(10)).to(images)
    return Case(model, F.cross_entropy, images, labels)


def _loop(images: Tensor, labels: Tensor) -> list[Tensor]:
    model = batch_norm_of_one(images, labels).model
    return [model(image[None]) for image in images]


def batch_norm_of_one_fixed(images: Tensor, labels: Tensor) -> Case:
    model = nn.Sequential(Classifier(), nn.BatchNorm1d(10)).to(images)
    return Case(model.eval(), F.cross_entropy, images, labels)


def instance_norm(images: Tensor, labels: Tensor) -> Case:
    model = _conv_net(nn.InstanceNorm2d(4, track_running_stats=True)).to(images)
    return Case(model, F.cross_entropy, images, labels)


def instance_norm_fixed(images: Tensor, labels: Tensor) -> Case:
    model = _conv_net(nn.InstanceNorm2d(4)).to(images)
    return Case(model, F.cross_entropy, images, labels)


class _Counting(Classifier):
    """It counts its calls in a buffer, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(images)


def captured(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = _Counting().to(images)  # its forward does self.calls += 1, a buffer
    params = {name: p.detach() for name, p in model.named_parameters()}

    def compute_loss(params, sample, target):
        predictions = functional_call(model, params, (sample.unsqueeze(0),))
        return F.cross_entropy(predictions, target.unsqueeze(0))

    return vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, images, labels)


def captured_fixed(images: Tensor, labels: Tensor) -> Case:
    return Case(_Counting().to(images), F.cross_entropy, images, labels)  # buffers, an argument


ENTRIES = [
    Loud(
        name="batchnorm-in-training",
        symptom=_NORM,
        cause="BatchNorm in training mode normalises with mean and variance of the batch, so one "
        "sample's gradient alone is not defined. The error is about something else: its running "
        "statistics, which it writes in place.",
        fix="`model.eval()`, which uses the stored statistics, or GroupNorm.",
        broken=batch_norm,
        fixed=batch_norm_fixed,
        at=lambda module: isinstance(module, BATCH_NORMS) and module.training,
    ),
    Loud(
        name="batchnorm-of-one-value",
        error=ValueError,
        symptom=_ONE,
        cause="BatchNorm in training mode, on vectors: in a batch of one, a channel is one number, "
        "and has no variance.",
        also={
            "a loop over samples raises the same": lambda *few: raises(_ONE, lambda: _loop(*few))
        },
        fix="`model.eval()`, or GroupNorm or LayerNorm.",
        broken=batch_norm_of_one,
        fixed=batch_norm_of_one_fixed,
    ),
    Loud(
        name="instancenorm-with-statistics",
        symptom=_NORM,
        cause="InstanceNorm does not mix samples, but `track_running_stats=True` writes the "
        "statistics of each sample into one buffer.",
        fix="`track_running_stats=False`, `model.eval()`, or a buffer for each sample, which "
        "`func_gradients` makes.",
        broken=instance_norm,
        fixed=instance_norm_fixed,
        at=lambda module: isinstance(module, INSTANCE_NORMS) and module.training,
    ),
    Loud(
        name="captured-buffer",
        symptom="that would mutate a captured Tensor",
        cause="The forward writes into a buffer, and the buffers were not passed through the "
        "transforms as an argument.",
        fix="Pass parameters and buffers: `functional_call(model, (params, buffers), x)`. Then "
        "see `aliased-buffers`.",
        broken=captured,
        fixed=captured_fixed,
    ),
]
