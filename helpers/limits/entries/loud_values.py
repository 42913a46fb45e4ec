"""Loud entries: the value of a sample is asked for, and there are B of them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.limits.bare import Case, Classifier
from helpers.limits.entry import Loud

_DECIDES = "attempting to use a Tensor in some data-dependent control flow"


def branch(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            z = super().forward(images)
            return z if z.sum() > 0 else -z  # made for one image

    return Case(Model().to(images), F.cross_entropy, images, labels)


def branch_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            z = super().forward(images)
            return torch.where(z.sum(dim=1, keepdim=True) > 0, z, -z)

    return Case(Model().to(images), F.cross_entropy, images, labels)


def item(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) / images.max().item()

    return Case(Model().to(images), F.cross_entropy, images, labels)


def item_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) / images.amax(dim=(1, 2, 3))[:, None]

    return Case(Model().to(images), F.cross_entropy, images, labels)


def numpy(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            ink = images.flatten().tolist()
            return super().forward(images) / (sum(ink) / len(ink))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def numpy_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) / images.mean(dim=(1, 2, 3))[:, None]

    return Case(Model().to(images), F.cross_entropy, images, labels)


def new_tensor(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            weights = torch.tensor([images.mean(), images.max()]).to(images)
            return super().forward(images) * weights.sum()

    return Case(Model().to(images), F.cross_entropy, images, labels)


def new_tensor_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            weights = torch.stack([images.mean(dim=(1, 2, 3)), images.amax(dim=(1, 2, 3))])
            return super().forward(images) * weights.sum(dim=0)[:, None]

    return Case(Model().to(images), F.cross_entropy, images, labels)


ENTRIES = [
    Loud(
        name="data-dependent-branch",
        symptom=_DECIDES,
        cause="`if` asks for the value of a tensor. Under `vmap` there are B values and one path.",
        fix="Compute both branches, and choose by `torch.where`.",
        broken=branch,
        fixed=branch_fixed,
    ),
    Loud(
        name="item",
        symptom="calling .item() on a Tensor",
        cause="`.item()` makes one Python number, where B are needed. `float(x)` and `int(x)` do "
        "the same.",
        fix="Stay with the tensor: arithmetic takes a tensor of shape `()` as it takes a number.",
        broken=item,
        fixed=item_fixed,
        functions=("item", "__float__", "__int__", "__index__"),
    ),
    Loud(
        name="numpy-or-list",
        symptom="Cannot access data pointer of Tensor that doesn't have storage",
        cause="`.numpy()` and `.tolist()` read memory. A tensor inside a transform has none of "
        "its own.",
        fix="Compute with torch, or before the transform.",
        broken=numpy,
        fixed=numpy_fixed,
    ),
    Loud(
        name="tensor-of-tensors",
        symptom="It looks like you're calling .item() on a Tensor. We don't support",
        cause="`torch.tensor([a, b])` copies values out of tensors, by `.item()`.",
        fix="`torch.stack([a, b])` joins them, and keeps their gradients.",
        broken=new_tensor,
        fixed=new_tensor_fixed,
    ),
]
