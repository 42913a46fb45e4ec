"""Models of libraries: small configurations with random weights, each with a shape of its inputs.

`tests/wild/models.toml` lists them. A library is imported when a model of it is made.
"""

import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

LISTED: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).parents[1].joinpath("wild", "models.toml").read_text()
)
"""By library, its models by name, with their options."""


def make(library: str, name: str, size: int) -> tuple[nn.Module, Tensor]:
    """Make a model of the list in evaluation mode, in float64, and inputs for it.

    Returns:
        A module that maps inputs to `(B, Y)`, and inputs `(B, ...)`, where B is `size`.
    """
    torch.manual_seed(0)
    model, data = LIBRARIES[library].make(name, dict(LISTED[library][name]), size)
    model.eval().double()
    model._apply(lambda each: each.to(torch.complex128) if each.is_complex() else each)
    return model, data.double() if data.is_floating_point() else data


class Flat(nn.Module):
    """A model as a function of one tensor, with outputs `(B, Y)`, at most 8 of them.

    Args:
        model: Any module.
        argument: The keyword that takes the tensor; `None` means the first argument.
        take: What to take of the model's output; `None` means the output itself.
    """

    def __init__(self, model: nn.Module, argument: str | None = None, take: str | None = None):
        super().__init__()
        self.model, self.argument, self.take = model, argument, take

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the model."""
        given = {self.argument: inputs} if self.argument else {}
        outputs = self.model(*([] if given else [inputs]), **given)
        outputs = getattr(outputs, self.take) if self.take else outputs
        outputs = outputs[0] if isinstance(outputs, tuple | list) else outputs
        return outputs.flatten(1)[:, -8:]


class OnGraph(nn.Module):
    """A graph network on one fixed graph; a sample is what its nodes hold, `(nodes, features)`."""

    def __init__(self, model: nn.Module, nodes: int) -> None:
        super().__init__()
        self.model = model
        ring = torch.arange(nodes)
        self.register_buffer("edges", torch.stack([ring, ring.roll(1)]))

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the network on each sample: `(B, features)`."""
        return torch.stack([self.model(sample, self.edges).mean(0) for sample in inputs])


def _timm(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    side = options.pop("side", options.get("img_size", 64))
    with pretended_torchvision():
        create = import_module("timm").create_model
        model = create(name, pretrained=False, num_classes=3, **options)
    return Flat(model), torch.randn(size, 3, side, side)


def _vit_pytorch(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    module, _, kind = name.rpartition(".")
    side = options.pop("side", 32)  # `image_size` may be a pair
    with pretended_torchvision():
        model = getattr(import_module(f"vit_pytorch.{module}"), kind)(num_classes=3, **options)
    return Flat(model), torch.randn(size, 3, side, side)


def _transformers(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    library, argument = import_module("transformers"), options.pop("argument", "input_ids")
    shape, take = options.pop("shape", [8]), options.pop("take", "logits")
    kind = getattr(library, name)
    model = kind(kind.config_class(**options))
    integer = argument in ("input_ids", "decoder_input_ids")
    data = torch.randint(3, 20, (size, *shape)) if integer else torch.randn(size, *shape)
    return Flat(model, argument, take), data


def _torch_geometric(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    if "deg" in options:
        options["deg"] = torch.tensor(options["deg"])
    model = getattr(import_module("torch_geometric.nn").models, name)(**options)
    return OnGraph(model, 6), torch.randn(size, 6, options["in_channels"])


def _neuralop(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    shape = options.pop("shape")
    model = getattr(import_module("neuralop.models"), name)(**options)
    return Flat(model), torch.randn(size, *shape)


def _x_transformers(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    library = import_module("x_transformers")
    layers = getattr(library, name)(**options)
    model = library.TransformerWrapper(num_tokens=20, max_seq_len=8, attn_layers=layers)
    return Flat(model), torch.randint(20, (size, 8))


class Library(NamedTuple):
    """A library: the name to import, and what makes a model of it and inputs."""

    module: str
    make: Callable[[str, dict[str, Any], int], tuple[nn.Module, Tensor]]


LIBRARIES = {
    "timm": Library("timm", _timm),
    "transformers": Library("transformers", _transformers),
    "vit-pytorch": Library("vit_pytorch", _vit_pytorch),
    "x-transformers": Library("x_transformers", _x_transformers),
    "torch-geometric": Library("torch_geometric", _torch_geometric),
    "neuraloperator": Library("neuralop", _neuralop),
}


@contextmanager
def pretended_torchvision() -> Iterator[None]:
    """Let torchvision be imported, which would bring another torch, and which no model needs."""
    finder = _Pretended()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


class _Anything(type):
    """The kind of a class whose attributes are their own names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Pretended(MetaPathFinder, Loader):
    """A torchvision that can be imported, and of which no model here calls anything."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find torchvision and all that could be in it."""
        mine = name.partition(".")[0] == "torchvision"
        return ModuleSpec(name, self, is_package=True) if mine else None

    def exec_module(self, module: ModuleType) -> None:
        """Let a module hold a class of any name."""

        def find(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Anything(name, (), {})

        module.__getattr__ = find
