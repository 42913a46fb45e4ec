"""Loud entries: the value of a sample is asked for, and there are B of them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.limits.bare import Case, Classifier, bare_gradients
from helpers.limits.entry import Loud, raises

_DECIDES = "attempting to use a Tensor in some data-dependent control flow"
_NO_MEMORY = "Cannot access data pointer of Tensor that doesn't have storage"


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


def _integer(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) / (1 + int(images.max()))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def _number(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) / float(images.max())

    return Case(Model().to(images), F.cross_entropy, images, labels)


def numpy(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) / float(images.numpy(force=True).mean())

    return Case(Model().to(images), F.cross_entropy, images, labels)


def numpy_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) / images.mean(dim=(1, 2, 3))[:, None]

    return Case(Model().to(images), F.cross_entropy, images, labels)


def _listed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            ink = images.flatten().tolist()
            return super().forward(images) / (sum(ink) / len(ink))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def numpy_computed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    class Model(Classifier):
        def forward(self, images):
            z = super().forward(images)
            return z / float(abs(z.numpy()).max())

    return bare_gradients(Model().to(images), F.cross_entropy, images, labels)


def _numpy_undetached(images: Tensor, labels: Tensor) -> object:
    return Classifier().to(images)(images).cpu().numpy()


def numpy_computed_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            z = super().forward(images)
            return z / z.detach().abs().amax(dim=1, keepdim=True)  # detached: no gradient of it

    return Case(Model().to(images), F.cross_entropy, images, labels)


def _numpy_detached(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            z = super().forward(images)
            return z / float(abs(z.detach().cpu().numpy()).max())

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
        cause="`.item()` makes one Python number, where B are needed.",
        also={
            "`float(x)` raises the same": lambda *few: raises(
                "calling .item() on a Tensor", lambda: bare_gradients(*_number(*few))
            ),
            "`int(x)` raises the same": lambda *few: raises(
                "calling .item() on a Tensor", lambda: bare_gradients(*_integer(*few))
            ),
        },
        fix="Stay with the tensor: arithmetic takes a tensor of shape `()` as it takes a number.",
        broken=item,
        fixed=item_fixed,
        functions=("item", "__float__", "__int__", "__index__"),
    ),
    Loud(
        name="numpy-or-list",
        symptom=_NO_MEMORY,
        cause="`.numpy()` reads memory. A tensor inside a transform has none of its own.",
        also={
            "`.tolist()` raises the same": lambda *few: raises(
                _NO_MEMORY, lambda: bare_gradients(*_listed(*few))
            )
        },
        fix="Compute with torch, or before the transform.",
        broken=numpy,
        fixed=numpy_fixed,
    ),
    Loud(
        name="numpy-of-a-result",
        symptom="Can't call numpy() on Tensor that requires grad",
        cause="`.numpy()` of what the parameters computed: autograd refuses it, with or without "
        "transforms. The `.detach()` that the message asks for leads to `numpy-or-list`.",
        also={
            "a plain forward raises the same": lambda *few: raises(
                "Can't call numpy() on Tensor that requires grad",
                lambda: _numpy_undetached(*few),
            ),
            "a plain forward with `.detach()` runs": lambda *few: bool(
                torch.isfinite(_numpy_detached(*few).model(few[0])).all()
            ),
            "with `.detach()`, under `vmap(grad)`, it is the message of `numpy-or-list`": (
                lambda *few: raises(_NO_MEMORY, lambda: bare_gradients(*_numpy_detached(*few)))
            ),
        },
        fix="Compute with torch; `.detach()` what shall be a constant.",
        broken=numpy_computed,
        fixed=numpy_computed_fixed,
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
