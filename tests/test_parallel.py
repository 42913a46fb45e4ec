"""Modules over processes: refused in one sentence, and the ways out that it names hold."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from helpers import gradients
from tests.support import parallel_cases, workers

LOOP = "or call .backward() for one sample after the other, the same in all processes at a time"
COPY = "into a plain module in each process, which is exact"
BY_TENSOR = f"copy the full_tensor() of each {COPY}, {LOOP}"
BY_SHARD = (
    "is sharded over processes by fully_shard: copy the full_tensor() of each parameter "
    f"{COPY}, {LOOP}"
)
BY_FSDP1 = (
    "is sharded over processes by FullyShardedDataParallel: copy the weights that "
    f"summon_full_params shows {COPY}, {LOOP}"
)
SAID = {
    "parallelize_module": f"0.weight is a DTensor, spread over processes: {BY_TENSOR}",
    "distribute_module": f"0.weight is a DTensor, spread over processes: {BY_TENSOR}",
    "a buffer": f"running_mean is a DTensor, spread over processes: {BY_TENSOR}",
    "fully_shard": f"the model {BY_SHARD}",
    "fully_shard, unsharded": f"the model {BY_SHARD}",
    "fully_shard, a layer": f"0 {BY_SHARD}",
    "FSDP1": f"the model {BY_FSDP1}",
    "FSDP1, a layer": f"0 {BY_FSDP1}",
    "DDP": "the model is wrapped in DistributedDataParallel, whose backward takes the mean over "
    "processes: take its .module",
    "replicate": "the model went through replicate(), so that its backward takes the mean over "
    "processes: take a module that did not",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two processes was told, and what the ways out gave it."""
    return workers.run("tests.support.parallel_cases:both", 2, tmp_path_factory.mktemp("parallel"))


@pytest.mark.parametrize("what", SAID)
def test_every_helper_refuses_it_in_one_sentence(what, found):
    expected = dict.fromkeys(parallel_cases.helpers(parallel_cases.network()), SAID[what])
    if what == "DDP":
        del expected["diagnose"]  # it has an entry for the wrapper, and looks inside
    assert [refusals[what] for refusals, _ in found] == [expected] * 2


def test_data_over_processes_is_refused(found):
    for refusals, _ in found:
        assert refusals["data"]["func_gradients"] == (
            "data is a DTensor, spread over processes: give its full_tensor(), or what this "
            "process has of it, to_local()"
        )


def test_the_ways_out_are_exact(found):
    model, loss_fn = parallel_cases.network(), F.cross_entropy
    expected = gradients.loop_gradients(model, loss_fn, *parallel_cases.samples())
    for _, ways in found:
        assert list(ways) == ["parallelize_module", "fully_shard", "fully_shard, a layer", "FSDP1"]
        for copied, looped in ways.values():
            for name, rows in expected.items():
                torch.testing.assert_close(copied[name], rows, rtol=1e-5, atol=1e-7)
                torch.testing.assert_close(looped[name], rows, rtol=1e-5, atol=1e-7)


def test_nobody_pays_for_the_check():
    code = (
        "import sys; from helpers import gradients, norms, privacy, gradient_computers; "
        "import helpers.limits; "
        "sys.exit(any(f'torch.distributed.{each}' in sys.modules for each in ('fsdp', 'tensor')))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=workers.ROOT, check=True)
