"""Models of libraries: small configurations with random weights, each with a shape of its inputs.

`tests/wild/models.toml` lists them. A library is imported when a model of it is made.
"""

import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.zoo import Apply

LISTED: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).parents[1].joinpath("wild", "models.toml").read_text("utf-8")
)
"""By library, its models by name, with their options."""


def make(library: str, name: str, size: int) -> tuple[nn.Module, Tensor]:
    """Make a model of the list in float64 that maps inputs to `(B, Y)`, and B inputs for it."""
    torch.manual_seed(0)
    _, build = LIBRARIES[library]
    model, data = build(name, size, **LISTED[library][name])
    model.eval().double()
    # `double()` leaves complex parameters as they are.
    model._apply(lambda each: each.to(torch.complex128) if each.is_complex() else each)
    if data.is_floating_point():
        data = data.double()
    return model, data


def _flat(model: nn.Module, argument: str | None = None, take: str | None = None) -> nn.Module:
    """Make a model a function of one tensor, with outputs `(B, Y)`, at most 8 of them.

    The tensor goes to `argument`, or to the first; of the output, `take` says which part counts.
    """

    def run(self: Apply, inputs: Tensor) -> Tensor:
        outputs = self.model(**{argument: inputs}) if argument else self.model(inputs)
        if take:
            outputs = getattr(outputs, take)
        if isinstance(outputs, tuple | list):
            outputs = outputs[0]
        return outputs.flatten(1)[:, -8:]

    return Apply(run, model=model)


def _timm(name: str, size: int, side: int = 0, **options: Any) -> tuple[nn.Module, Tensor]:
    side = side or options.get("img_size", 64)
    with PretendedTorchvision():
        timm = import_module("timm")
        model = timm.create_model(name, pretrained=False, num_classes=3, **options)
    return _flat(model), torch.randn(size, 3, side, side)


def _transformers(
    name: str,
    size: int,
    argument: str = "input_ids",
    shape: Sequence[int] = (8,),
    take: str = "logits",
    **options: Any,
) -> tuple[nn.Module, Tensor]:
    kind = getattr(import_module("transformers"), name)
    model = kind(kind.config_class(**options))
    if argument == "input_ids":
        data = torch.randint(3, 20, (size, *shape))
    else:
        data = torch.randn(size, *shape)
    return _flat(model, argument, take), data


def _torch_geometric(name: str, size: int, **options: Any) -> tuple[nn.Module, Tensor]:
    if "deg" in options:
        options["deg"] = torch.tensor(options["deg"])
    kind = getattr(import_module("torch_geometric.nn").models, name)
    model = kind(**options)

    def run(self: Apply, inputs: Tensor) -> Tensor:
        # Each sample is what its nodes hold, (nodes, features), and they stand in a ring.
        nodes = torch.arange(inputs.shape[1])
        edges = torch.stack([nodes, nodes.roll(1)])
        return torch.stack([self.model(sample, edges).mean(0) for sample in inputs])

    return Apply(run, model=model), torch.randn(size, 6, options["in_channels"])


def _neuralop(
    name: str, size: int, shape: Sequence[int], **options: Any
) -> tuple[nn.Module, Tensor]:
    kind = getattr(import_module("neuralop.models"), name)
    return _flat(kind(**options)), torch.randn(size, *shape)


LIBRARIES = {
    "timm": ("timm", _timm),
    "transformers": ("transformers", _transformers),
    "torch-geometric": ("torch_geometric", _torch_geometric),
    "neuraloperator": ("neuralop", _neuralop),
}
"""Of each library the name to import, and what makes a model of it and inputs."""


class _Anything(type):
    """The kind of a class whose attributes are their own names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class PretendedTorchvision(MetaPathFinder, Loader):
    """Lets torchvision be imported, which would bring another torch, and which no model needs."""

    def __enter__(self) -> None:
        sys.meta_path.append(self)

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)
        for name in list(sys.modules):
            if _is_torchvision(name):
                del sys.modules[name]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if _is_torchvision(name):
            return ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        def find(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Anything(name, (), {})

        module.__getattr__ = find


def _is_torchvision(name: str) -> bool:
    return name.partition(".")[0] == "torchvision"
