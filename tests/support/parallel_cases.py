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
    args = model, F.cross_entropy, data, targets
    case = Case(model, data, targets, F.cross_entropy)
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


def both() -> tuple[dict[str, dict[str, str]], dict[str, dict[str, Tensor]]]:
    """Collect what is raised, by module and helper, and what the ways out give, by module."""
    world = torch.distributed.get_world_size()
    modules = spread(world)
    said = {what: refusals(helpers(model)) for what, model in modules.items()}
    data, targets = samples()
    spread_out = distribute_tensor(data, init_device_mesh("cpu", (world,)))
    call = functools.partial(gradients.func_gradients, network(), F.cross_entropy)
    said["data"] = refusals({"func_gradients": lambda: call(spread_out, targets)})
    return said, {w: way_out(m) for w, m in modules.items() if w not in ("a buffer", "DDP")}


def refusals(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    said = {}
    for helper, compute in calls.items():
        try:
            compute()
        except ValueError as error:
            said[helper] = str(error)
    return said


def way_out(model: nn.Module) -> dict[str, Tensor]:
    """Take the way that a refusal names: gradients by name, from a copy."""
    plain, whole = network(), nullcontext()
    if isinstance(model, FullyShardedDataParallel):
        whole = FullyShardedDataParallel.summon_full_params(model)
    with torch.no_grad(), whole:
        for own, parameter in zip(plain.parameters(), model.parameters(), strict=True):
            own.copy_(parameter.full_tensor() if isinstance(parameter, DTensor) else parameter)
    return gradients.func_gradients(plain, F.cross_entropy, *samples())
