"""Silent entries: models whose samples meet, or whose gradients stop, without a word."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, replace_all_batch_norm_modules_

from helpers.gradients import loop_gradients
from helpers.limits.bare import Case, Classifier, bare_gradients
from helpers.limits.entry import Silent, agree, alike, raises


def _normed(images: Tensor, norm: nn.Module | None = None) -> nn.Module:
    layers = nn.Conv2d(1, 4, 3, stride=3), norm or nn.BatchNorm2d(4), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(324, 10)).to(images)


def _mean_is_right(model: nn.Module, images: Tensor, labels: Tensor) -> bool:
    """Compare the mean of the loop's gradients with the gradient of the batch."""
    mean = loop_gradients(model, F.cross_entropy, images, labels)["0.weight"].mean(dim=0)
    loss = F.cross_entropy(model(images), labels)
    return agree(mean, torch.autograd.grad(loss, model[0].weight)[0])


def batch_of_one(images: Tensor, labels: Tensor) -> Tensor:
    model = _normed(images)  # a convolution and BatchNorm, in training mode
    rows = [
        torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), model[0].weight)[0]
        for x, y in zip(images, labels, strict=True)
    ]
    return torch.stack(rows).mean(dim=0)


def batch_of_one_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = _normed(images)
    losses = F.cross_entropy(model(images), labels, reduction="none")
    (rows,) = torch.autograd.grad(
        losses, model[0].weight, torch.eye(len(losses)).to(losses), is_grads_batched=True
    )  # each row also holds what the others did to this sample's normalisation
    return rows.mean(dim=0)


def _batch_of_one_truth(images: Tensor, labels: Tensor) -> Tensor:
    model = _normed(images)
    return torch.autograd.grad(F.cross_entropy(model(images), labels), model[0].weight)[0]


def replaced(images: Tensor, labels: Tensor) -> Tensor:
    model = _normed(images)
    model(images)  # collects running statistics
    replace_all_batch_norm_modules_(model)
    return model.eval()(images).norm()


def replaced_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = _normed(images)
    model(images)
    gradients_of = replace_all_batch_norm_modules_(copy.deepcopy(model))
    assert gradients_of is not model  # for the transform alone
    return model.eval()(images).norm()


def _replaced_case(images: Tensor, labels: Tensor) -> Case:
    model = replace_all_batch_norm_modules_(_normed(images))
    return Case(model, F.cross_entropy, images, labels)


def _replaced_truth(images: Tensor, labels: Tensor) -> Tensor:
    """Normalise by hand with the statistics that one forward collects."""
    model = _normed(images)
    x = model[0](images)
    mean, var = 0.1 * x.mean(dim=(0, 2, 3)), 0.9 + 0.1 * x.var(dim=(0, 2, 3))
    x = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
    return model[3](x.flatten(1)).norm()


def mixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images - images.mean(dim=0))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def mixed_fixed(images: Tensor, labels: Tensor) -> Case:
    mean = images.mean(dim=0)  # computed once, outside of the model

    class Model(Classifier):
        def forward(self, images):
            return super().forward(images - mean)

    return Case(Model().to(images), F.cross_entropy, images, labels)


def numpy_draw(images: Tensor, labels: Tensor) -> bool:
    class Model(Classifier):
        def forward(self, images):
            keep = torch.from_numpy(np.random.rand(28, 28) < 0.5)  # noqa: NPY002
            return super().forward(images * keep.to(images.device))

    twice = images[:1].repeat(2, 1, 1, 1), labels[:1].repeat(2)
    first, second = bare_gradients(Model().to(images), F.cross_entropy, *twice)["weight"]
    return not torch.equal(first, second)


def numpy_draw_fixed(images: Tensor, labels: Tensor) -> bool:
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images * (torch.rand_like(images) < 0.5))

    twice = images[:1].repeat(2, 1, 1, 1), labels[:1].repeat(2)
    first, second = bare_gradients(
        Model().to(images), F.cross_entropy, *twice, randomness="different"
    )["weight"]
    return not torch.equal(first, second)


def _numpy_draw_case(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            keep = torch.from_numpy(np.random.rand(28, 28) < 0.5)  # noqa: NPY002
            return super().forward(images * keep.to(images.device))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def no_grad_inside(images: Tensor, labels: Tensor) -> Case:
    class Model(nn.Sequential):
        def forward(self, images):
            with torch.no_grad():
                features = self[0](images)
            return self[1](features)

    model = Model(Classifier(), nn.Linear(10, 10)).to(images)
    return Case(model, F.cross_entropy, images, labels)


def _by_autograd(images: Tensor, labels: Tensor, **options: bool) -> tuple[Tensor | None, ...]:
    model = no_grad_inside(images, labels).model
    loss = F.cross_entropy(model(images), labels)
    return torch.autograd.grad(loss, list(model.parameters()), **options)


def no_grad_inside_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = nn.Sequential(Classifier(), nn.Linear(10, 10)).to(images)
    with torch.no_grad():  # outside of the transform it does nothing
        return bare_gradients(model, F.cross_entropy, images, labels)


def _no_grad_inside_truth(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = nn.Sequential(Classifier(), nn.Linear(10, 10)).to(images)
    return loop_gradients(model, F.cross_entropy, images, labels)


ENTRIES = [
    Silent(
        name="batchnorm-in-a-loop",
        symptom="the mean of the per-sample gradients",
        cause="In training mode, a loop normalises each sample by itself. The mean of such "
        "gradients is not the gradient of the batch.",
        also={
            "with `model.eval()` it is": lambda *few: _mean_is_right(_normed(few[0]).eval(), *few),
            "with GroupNorm it is": lambda *few: _mean_is_right(
                _normed(few[0], nn.GroupNorm(2, 4)), *few
            ),
        },
        fix="There is no one gradient of a sample here. `is_grads_batched` differentiates each "
        "loss in the forward of the whole batch: the mean is right, and each row mixes samples. "
        "With `model.eval()`, or with GroupNorm, the question does not arise.",
        broken=batch_of_one,
        fixed=batch_of_one_fixed,
        truth=_batch_of_one_truth,
        lasting=True,
    ),
    Silent(
        name="replaced-batchnorm",
        symptom="the norm of the logits in evaluation mode",
        cause="`replace_all_batch_norm_modules_` makes `vmap` run: it removes the running "
        "statistics. Each sample is then normalised by itself, in evaluation too.",
        fix="On a copy, if at all. `model.eval()` keeps the statistics, and runs under `vmap`.",
        broken=replaced,
        fixed=replaced_fixed,
        truth=_replaced_truth,
        case=_replaced_case,
    ),
    Silent(
        name="samples-that-meet",
        symptom="the gradients of all samples",
        cause="The forward computes something over the batch. In a batch of one, that is the "
        "sample itself: centring, for one, is then each image minus itself.",
        also={
            "so the gradient of the weight is zero": lambda *few: (
                not bare_gradients(*mixed(*few))["weight"].any()
            ),
            "the loop over samples gives the same": lambda *few: alike(
                mixed, lambda *few: loop_gradients(*mixed(*few)), *few
            ),
        },
        fix="Compute it outside and hand it in as a constant, or over another dimension.",
        broken=mixed,
        fixed=mixed_fixed,
        lasting=True,
    ),
    Silent(
        name="numpy-draws",
        symptom="whether two samples get different draws",
        cause="`vmap` calls the forward once. It governs the draws of torch; one by NumPy or "
        "`random` happens once, and all samples share it.",
        fix='Draw with torch, and say `randomness="different"`.',
        broken=numpy_draw,
        fixed=numpy_draw_fixed,
        truth=lambda images, labels: True,
        case=_numpy_draw_case,
    ),
    Silent(
        name="no-gradient",
        symptom="the gradients of all samples",
        cause="A part of the forward runs under `no_grad` or through `detach()`, or the loss does "
        "not use it. `torch.func` returns zeros for it. `torch.autograd.grad` raises, or returns "
        "`None` if it is told `allow_unused=True`.",
        also={
            "`torch.autograd.grad` raises": lambda *few: raises(
                "to not have been used in the graph", lambda: _by_autograd(*few)
            ),
            "for what the loss does not use, `torch.func.grad` returns zeros too": (
                lambda images, labels: not grad(lambda unused: images.sum())(images).any()
            ),
            "with `allow_unused=True` it returns `None`": lambda *few: (
                _by_autograd(*few, allow_unused=True)[0] is None
            ),
        },
        fix="Remove the inner `no_grad`. Around the transform it is harmless, and does nothing.",
        broken=no_grad_inside,
        fixed=no_grad_inside_fixed,
        truth=_no_grad_inside_truth,
        lasting=True,
    ),
]
