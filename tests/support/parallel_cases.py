"""Modules over processes, put to the helpers; run by `tests.support.workers` in each process."""

import copy
import functools
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from helpers import ensembles, gradients, privacy
from helpers.features import Job, plan
from helpers.gradient_computers import FunctionalGradientComputer
from helpers.limits import diagnose
from helpers.model_outputs import ImageClassificationModelOutput
from tests.support.ways import LEGACY, WAYS
from tests.support.zoo import Case


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def samples() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 6), torch.tensor([0, 1, 2])


def spread(world: int) -> dict[str, nn.Module]:
    mesh = init_device_mesh("cpu", (world,))
    wrap = {"device_id": torch.device("cpu"), "use_orig_params": True}
    inner = network()
    fully_shard(inner[0], mesh=mesh)
    unsharded = fully_shard(network(), mesh=mesh, reshard_after_forward=False)
    unsharded(samples()[0])  # its parameters are plain tensors until the next backward
    by_layers = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    buffered = nn.BatchNorm1d(6).eval()
    for name, buffer in buffered.named_buffers():
        setattr(buffered, name, distribute_tensor(buffer, mesh))
    return {
        "parallelize_module": parallelize_module(network(), mesh, by_layers),
        "a buffer": buffered,
        "fully_shard, unsharded": unsharded,
        "fully_shard, a layer": inner,
        "FSDP1": FullyShardedDataParallel(network(), **wrap),
        "DDP": nn.parallel.DistributedDataParallel(network()),
    }


def helpers(model: nn.Module) -> dict[str, Callable[[], object]]:
    data, targets = samples()
    case, args = (
        Case(model, data, targets, F.cross_entropy),
        (model, F.cross_entropy, data, targets),
    )
    task, truth = ImageClassificationModelOutput(), SimpleNamespace(limit=1.0)
    later = FunctionalGradientComputer(network(), task, 92, torch.float32, "cpu")
    later.model = model  # as if it had been sharded later
    return {
        name: functools.partial(way.compute, case, truth)
        for name, way in (WAYS | LEGACY).items()
        if "out" not in name
    } | {
        "private_sum": lambda: privacy.private_sum(*args, limit=1.0, noise_multiplier=1.0),
        "computer, sharded later": lambda: later.compute_per_sample_grad((data, targets)),
        "features": lambda: plan.make(Job(later, [(data[0], targets[0])])),
        "stack": lambda: ensembles.stack([model, copy.copy(model)]),
        "diagnose": lambda: diagnose(*args),
    }


def both() -> tuple[object, object]:
    return refusals(), ways_out()


def refusals() -> dict[str, dict[str, str]]:
    """Collect by module and helper what is raised."""
    world = torch.distributed.get_world_size()
    said: dict[str, dict[str, str]] = {}
    for what, model in spread(world).items():
        said[what] = {}
        for helper, compute in helpers(model).items():
            try:
                compute()
            except ValueError as error:
                said[what][helper] = str(error)
    mesh = init_device_mesh("cpu", (world,))
    data, targets = samples()
    try:
        gradients.func_gradients(network(), F.cross_entropy, distribute_tensor(data, mesh), targets)
    except ValueError as error:
        said["data"] = {"func_gradients": str(error)}
    return said


def ways_out() -> dict[str, dict[str, Tensor]]:
    """Take the ways that the refusals name: gradients by name, from a copy."""
    found = {}
    for what, model in spread(torch.distributed.get_world_size()).items():
        if what not in ("a buffer", "DDP"):
            plain, whole = network(), nullcontext()
            if what == "FSDP1":
                whole = FullyShardedDataParallel.summon_full_params(model)
            with torch.no_grad(), whole:
                for own, parameter in zip(plain.parameters(), model.parameters(), strict=True):
                    spread_out = isinstance(parameter, DTensor)
                    own.copy_(parameter.full_tensor() if spread_out else parameter)
            found[what] = gradients.func_gradients(plain, F.cross_entropy, *samples())
    return found
