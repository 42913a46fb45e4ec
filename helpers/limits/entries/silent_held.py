"""Silent entries: what a model holds that `functional_call` does not swap, nor a copy carries."""

import copy
from types import MethodType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.gradients import loop_gradients
from helpers.limits.bare import Case, Classifier, bare_gradients
from helpers.limits.entry import Silent, alike


class Caching(Classifier):
    """It scales its weight to rows of length 1 in its first forward, and keeps the result."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = {}

    def forward(self, images: Tensor) -> Tensor:
        if "weight" not in self.cache:
            self.cache["weight"] = F.normalize(self.weight, dim=1)
        return F.linear(images.flatten(1), self.cache["weight"], self.bias)


def cached(images: Tensor, labels: Tensor) -> Case:
    model = Caching().to(images)
    model(images)  # the first forward fills the cache
    return Case(model, F.cross_entropy, images, labels)


def cached_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return F.linear(images.flatten(1), F.normalize(self.weight, dim=1), self.bias)

    return Case(Model().to(images), F.cross_entropy, images, labels)


def _cached_within(images: Tensor, labels: Tensor) -> Case:
    return Case(Caching().to(images), F.cross_entropy, images, labels)


def _dead_afterwards(images: Tensor, labels: Tensor) -> bool:
    model = Caching().to(images)
    bare_gradients(model, F.cross_entropy, images, labels)
    F.cross_entropy(model(images), labels).backward()
    return model.weight.grad is None


class Hooking(Classifier):
    """It registers a hook on itself in its first forward, which acts from the second one on."""

    def forward(self, images: Tensor) -> Tensor:
        if not self._forward_hooks:
            self.register_forward_hook(lambda module, inputs, output: output / 2)
        return super().forward(images)


def _first_rows_differ(images: Tensor, labels: Tensor) -> bool:
    """Compare two samples that are alike, in a loop over one model that is new."""
    model, rows = Hooking().to(images), []
    for _ in range(2):
        loss = F.cross_entropy(model(images[:1]), labels[:1])
        rows.append(torch.autograd.grad(loss, model.weight)[0])
    return not torch.equal(*rows)


def _transform_calls_once(images: Tensor, labels: Tensor) -> bool:
    """Compare two samples that are alike, under `vmap`, where no sample is the second."""
    twice = images[:1].repeat(2, 1, 1, 1), labels[:1].repeat(2)
    return torch.equal(*bare_gradients(Hooking().to(images), F.cross_entropy, *twice)["weight"])


def _halved(forward):
    def wrapper(images):
        return forward(images) / 2

    return wrapper


def wrapped(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = Classifier().to(images)
    model.forward = _halved(model.forward)
    return bare_gradients(copy.deepcopy(model), F.cross_entropy, images, labels)


def wrapped_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = Classifier().to(images)
    model.register_forward_hook(lambda module, inputs, output: output / 2)
    return bare_gradients(copy.deepcopy(model), F.cross_entropy, images, labels)


def _wrapped_case(images: Tensor, labels: Tensor) -> Case:
    model = Classifier().to(images)
    model.forward = _halved(model.forward)
    return Case(model, F.cross_entropy, images, labels)


def _wrapped_as_method(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = Classifier().to(images)
    model.forward = MethodType(lambda self, images: Classifier.forward(self, images) / 2, model)
    return bare_gradients(copy.deepcopy(model), F.cross_entropy, images, labels)


def _wrapped_truth(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Halve the logits in the loss instead, where nothing is wrapped."""
    model = Classifier().to(images)
    return loop_gradients(model, lambda z, y: F.cross_entropy(z / 2, y), images, labels)


class Listing(nn.Module):
    """It keeps its weight in a plain list too, and computes with that one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)
        self.weights = [self.layer.weight]

    def forward(self, images: Tensor) -> Tensor:
        return F.linear(images.flatten(1), self.weights[0], self.layer.bias)


def listed(images: Tensor, labels: Tensor) -> Case:
    return Case(Listing().to(images), F.cross_entropy, images, labels)


def listed_fixed(images: Tensor, labels: Tensor) -> Case:
    model = Listing().to(images)
    model.weights = nn.ParameterList(model.weights)
    return Case(model, F.cross_entropy, images, labels)


def _listed_truth(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Compute with the layer itself."""
    model = Listing().to(images)
    layer = nn.Sequential(nn.Flatten(), model.layer)
    grads = loop_gradients(layer, F.cross_entropy, images, labels)
    return {name.replace("1.", "layer."): g for name, g in grads.items()}


def _autograd_finds_it(images: Tensor, labels: Tensor) -> bool:
    model = Listing().to(images)
    F.cross_entropy(model(images), labels).backward()
    return bool(model.layer.weight.grad.any())


def _list_registers_nothing(images: Tensor, labels: Tensor) -> bool:
    model = nn.Module()
    model.weights = [nn.Parameter(images[0])]
    return not list(model.parameters())


ENTRIES = [
    Silent(
        name="state-in-a-container",
        symptom="the gradients of all samples",
        cause="A forward that keeps a result in a dictionary or a list uses what an earlier call "
        "computed, from the parameters of that call. `functional_call` swaps parameters and "
        "buffers, and nothing else: the gradient through the stored result is zero.",
        also={
            "with the cache still empty, the gradients are right": lambda *few: alike(
                _cached_within, cached_fixed, *few
            ),
            "after that, `.backward()` leaves the weight without a gradient": _dead_afterwards,
            "of two equal samples, a loop gives the second another gradient, where the first "
            "forward registers a hook": _first_rows_differ,
            "under `vmap` both get that of a first call": _transform_calls_once,
        },
        fix="Compute it in each forward. Register hooks before the first call.",
        broken=cached,
        fixed=cached_fixed,
    ),
    Silent(
        name="wrapped-forward",
        symptom="the gradients of all samples, on a copy of the model",
        cause="`model.forward = wrapper(model.forward)` keeps the *original* model inside of the "
        "wrapper. `copy.deepcopy` does not copy functions: the copy runs the original, with its "
        "parameters. So the gradient with respect to those of the copy is zero.",
        also={
            "without the copy, the gradients are right": lambda *few: alike(
                _wrapped_case, _wrapped_truth, *few
            ),
            "`MethodType(function, model)` is a way out too, since it is copied with its model": (
                lambda *few: alike(_wrapped_as_method, _wrapped_truth, *few)
            ),
        },
        fix="A forward hook, or a subclass: both take the model that they run on as an argument.",
        broken=wrapped,
        fixed=wrapped_fixed,
        truth=_wrapped_truth,
        case=_wrapped_case,
    ),
    Silent(
        name="parameter-in-a-list",
        symptom="the gradients of all samples",
        cause="`functional_call` swaps what is registered. A plain list still holds the original "
        "parameter, and a forward that takes it from there does not see the one handed in: its "
        "gradient is zero.",
        also={
            "`.backward()` gives that weight a gradient": _autograd_finds_it,
            "a parameter that stands in a plain list alone is none of `model.parameters()`": (
                _list_registers_nothing
            ),
        },
        fix="`nn.ParameterList`, or use the layer itself.",
        broken=listed,
        fixed=listed_fixed,
        truth=_listed_truth,
    ),
]
