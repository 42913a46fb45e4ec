"""Modules over processes: refused in one sentence, and the way out that it names holds."""

import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from helpers import gradients
from helpers.limits import diagnose
from tests.support import workers
from tests.support.ways import WAYS
from tests.support.zoo import Case

SAID = {  # by what was done to a network, what every helper names when it refuses it
    "parallelize_module": "0.weight is a DTensor",
    "fully_shard, unsharded": "the model is a FSDPSequential",
    "fully_shard, a layer": "0 is a FSDPLinear",
    "DDP": "the model is a DistributedDataParallel",
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def samples() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 6), torch.tensor([0, 1, 2])


def spread(mesh: object) -> dict[str, nn.Module]:
    inner = network()
    fully_shard(inner[0], mesh=mesh)
    unsharded = fully_shard(network(), mesh=mesh, reshard_after_forward=False)
    unsharded(samples()[0])  # its parameters are plain tensors until the next backward
    by_layers = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return {
        "parallelize_module": parallelize_module(network(), mesh, by_layers),
        "fully_shard, unsharded": unsharded,
        "fully_shard, a layer": inner,
        "DDP": nn.parallel.DistributedDataParallel(network()),
    }


def helpers(model: nn.Module) -> dict[str, Callable[[], object]]:
    """Return calls of every helper for a model."""
    data, targets = samples()
    case, truth = Case(model, data, targets, F.cross_entropy), SimpleNamespace(limit=1.0)
    calls = {"diagnose": functools.partial(case.pass_to, diagnose)}
    for name, way in WAYS.items():
        if "out" not in name:
            calls[name] = functools.partial(way.compute, case, truth)
    return calls


def refusals(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    said = {}
    for helper, compute in calls.items():
        try:
            compute()
        except ValueError as error:
            said[helper] = str(error)
    return said


def in_each_process() -> tuple[dict[str, dict[str, str]], dict[str, Tensor]]:
    """Collect what is raised, by module and helper, and what the way out gives."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    modules = spread(mesh)
    said = {what: refusals(helpers(model)) for what, model in modules.items()}
    data, targets = samples()
    plain = Case(network(), data, targets, F.cross_entropy)
    of_data = dataclasses.replace(plain, data=distribute_tensor(data, mesh))
    call = functools.partial(of_data.pass_to, gradients.func_gradients)
    said["data"] = refusals({"": call})
    # The way out: the whole parameters in a network of one process.
    state = modules["fully_shard, a layer"].state_dict()
    for name in ("0.weight", "0.bias"):
        state[name] = state[name].full_tensor()
    plain.model.load_state_dict(state)
    return said, plain.pass_to(gradients.func_gradients)


def test_every_helper_refuses_it_in_one_sentence_and_the_way_out_is_exact(tmp_path):
    data, targets = samples()
    expected = gradients.loop_gradients(network(), F.cross_entropy, data, targets)
    for refused, copied in workers.run("tests.matrix.test_parallel:in_each_process", 2, tmp_path):
        for what, sentence in SAID.items():
            assert refused[what].keys() == helpers(network()).keys()
            for said in refused[what].values():
                assert sentence in said
        assert "to_local()" in refused["data"][""]
        torch.testing.assert_close(copied, expected, rtol=1e-5, atol=1e-7)


IMPORTING = """
import sys
import helpers.limits
from helpers import gradients, norms, privacy, gradient_computers
assert "torch.distributed.fsdp" not in sys.modules
assert "torch.distributed.tensor" not in sys.modules
"""


def test_nobody_pays_for_the_check():
    subprocess.run([sys.executable, "-c", IMPORTING], cwd=workers.ROOT, check=True)
