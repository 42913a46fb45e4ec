"""Models of libraries: small configurations with random weights, each with a shape of its inputs.

`tests/wild/models.toml` lists them. A library is imported when a model of it is made.
"""

import importlib
import sys
import tomllib
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

LIST = Path("tests/wild/models.toml")


class Listed(NamedTuple):
    """A line of the list: a library, the name of the model in it, and its options."""

    library: str
    name: str
    options: dict[str, Any]

    @property
    def title(self) -> str:
        """What the report calls it."""
        return f"{self.library}: {self.name}"


def read(path: Path = LIST) -> list[Listed]:
    """Read the list.

    Raises:
        ValueError: It names a library that nothing here makes models of.
    """
    listed = [
        Listed(library, name, options)
        for library, group in tomllib.loads(path.read_text()).items()
        for name, options in group.items()
    ]
    unknown = sorted({each.library for each in listed} - set(LIBRARIES))
    if unknown:
        raise ValueError(f"no library {', '.join(unknown)}: there are {', '.join(LIBRARIES)}")
    return listed


def make(listed: Listed, size: int) -> tuple[nn.Module, Tensor]:
    """Make a model in evaluation mode, in float64, and inputs for it.

    Args:
        listed: A line of the list.
        size: How many samples.

    Returns:
        A module that maps inputs to `(B, Y)`, and inputs `(B, ...)`.
    """
    torch.manual_seed(0)
    model, data = LIBRARIES[listed.library](listed.name, dict(listed.options), size)
    model = model.eval().double()._apply(_complex_in_double)  # which `double` leaves as it is
    return model, data.double() if data.is_floating_point() else data


def _complex_in_double(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor


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
    model = _load("timm").create_model(name, pretrained=False, num_classes=3, **options)
    return Flat(model), torch.randn(size, 3, side, side)


def _vit_pytorch(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    module, _, kind = name.rpartition(".")
    side = options.pop("side", 32)  # `image_size` may be a pair
    model = getattr(_load(f"vit_pytorch.{module}"), kind)(num_classes=3, **options)
    return Flat(model), torch.randn(size, 3, side, side)


def _transformers(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    library, argument = _load("transformers"), options.pop("argument", "input_ids")
    shape, take = options.pop("shape", [8]), options.pop("take", "logits")
    kind = getattr(library, name)
    model = kind(kind.config_class(**options))
    integer = argument in ("input_ids", "decoder_input_ids")
    data = torch.randint(3, 20, (size, *shape)) if integer else torch.randn(size, *shape)
    return Flat(model, argument, take), data


def _torch_geometric(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    if "deg" in options:
        options["deg"] = torch.tensor(options["deg"])
    model = getattr(_load("torch_geometric.nn").models, name)(**options)
    return OnGraph(model, 6), torch.randn(size, 6, options["in_channels"])


def _neuralop(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    shape = options.pop("shape")
    model = getattr(_load("neuralop.models"), name)(**options)
    return Flat(model), torch.randn(size, *shape)


def _x_transformers(name: str, options: dict[str, Any], size: int) -> tuple[nn.Module, Tensor]:
    library = _load("x_transformers")
    layers = getattr(library, name)(**options)
    model = library.TransformerWrapper(num_tokens=20, max_seq_len=8, attn_layers=layers)
    return Flat(model), torch.randint(20, (size, 8))


LIBRARIES: dict[str, Callable[[str, dict[str, Any], int], tuple[nn.Module, Tensor]]] = {
    "timm": _timm,
    "transformers": _transformers,
    "vit-pytorch": _vit_pytorch,
    "x-transformers": _x_transformers,
    "torch-geometric": _torch_geometric,
    "neuraloperator": _neuralop,
}


def _load(name: str) -> ModuleType:
    """Import a library; two of them with a torchvision that is none."""
    pretend = name.partition(".")[0] in ("timm", "vit_pytorch")
    if pretend and not any(isinstance(each, _Pretended) for each in sys.meta_path):
        sys.meta_path.append(_Pretended())
    return importlib.import_module(name)


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
