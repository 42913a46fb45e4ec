"""Loud entries: the model comes in a wrapper, or is not ready."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from helpers.limits.bare import Case, Classifier
from helpers.limits.entry import Loud


def compiled_names(images: Tensor, labels: Tensor) -> Tensor:
    model = Classifier().to(images)
    compiled = torch.compile(model, backend="eager")
    params = {name: p.detach() for name, p in compiled.named_parameters()}  # "_orig_mod.weight"
    return functional_call(model, params, (images,))


def compiled_names_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = Classifier().to(images)
    params = {name: p.detach() for name, p in model.named_parameters()}
    return functional_call(model, params, (images,))  # compile the whole: compile(vmap(grad(f)))


def mixed_modes(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    models = [Classifier().to(images), Classifier().to(images).eval()]
    return stack_module_state(models)[0]


def mixed_modes_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    models = [Classifier().to(images), Classifier().to(images).eval()]
    return stack_module_state([model.eval() for model in models])[0]


def _stacked(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    states = [Classifier().to(images).state_dict() for _ in range(2)]
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def data_parallel(images: Tensor, labels: Tensor) -> Case:
    model = nn.DataParallel(Classifier().to(images))
    return Case(model, F.cross_entropy, images, labels)


def data_parallel_fixed(images: Tensor, labels: Tensor) -> Case:
    model = nn.DataParallel(Classifier().to(images))
    return Case(model.module, F.cross_entropy, images, labels)


def scripted(images: Tensor, labels: Tensor) -> Case:
    model = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(784, 10))).to(images)
    return Case(model, F.cross_entropy, images, labels)


def scripted_fixed(images: Tensor, labels: Tensor) -> Case:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(images)
    return Case(model, F.cross_entropy, images, labels)


def lazy(images: Tensor, labels: Tensor) -> Case:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(10)).to(images)
    return Case(model, F.cross_entropy, images, labels)


def lazy_fixed(images: Tensor, labels: Tensor) -> Case:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(10)).to(images)
    model(images[:1])
    return Case(model, F.cross_entropy, images, labels)


ENTRIES = [
    Loud(
        name="compiled-names",
        error=AttributeError,
        symptom="has no attribute `_orig_mod`",
        cause="`torch.compile(model)` returns a wrapper, whose parameters are called "
        "`_orig_mod.weight`.",
        fix="Take the names of the model inside, and compile last: `torch.compile(vmap(grad(f)))`.",
        broken=compiled_names,
        fixed=compiled_names_fixed,
        truth=lambda images, labels: Classifier().to(images)(images),
    ),
    Loud(
        name="mixed-modes",
        symptom="Expected all models to have the same training/eval mode",
        cause="`stack_module_state` stacks the parameters of several models, to run them as one. "
        "It refuses models of which some are in training mode and some are not.",
        fix="One mode for all of them.",
        broken=mixed_modes,
        fixed=mixed_modes_fixed,
        truth=_stacked,
    ),
    Loud(
        name="data-parallel",
        symptom="The stateless API can't be used with nn.DataParallel module",
        cause="`functional_call` refuses the wrapper `nn.DataParallel`.",
        fix="The model inside: `model.module`.",
        broken=data_parallel,
        fixed=data_parallel_fixed,
        at=lambda module: isinstance(module, nn.DataParallel),
    ),
    Loud(
        name="scripted-module",
        symptom="The stateless API can't be used with Jitted modules",
        cause="`functional_call` refuses a `ScriptModule`.",
        fix="The Python module that it was made from.",
        broken=scripted,
        fixed=scripted_fixed,
        at=lambda module: isinstance(module, torch.jit.ScriptModule),
    ),
    Loud(
        name="lazy-module",
        error=ValueError,
        symptom="Attempted to use an uninitialized parameter",
        cause="A lazy layer gets its weight in its first forward.",
        fix="Run the model once before you take its parameters.",
        broken=lazy,
        fixed=lazy_fixed,
        at=lambda module: (
            isinstance(module, nn.modules.lazy.LazyModuleMixin)
            and module.has_uninitialized_params()
        ),
    ),
]
