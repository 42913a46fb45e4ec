"""Modules over processes: refused in one sentence, and the ways out that it names hold."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from helpers import gradients
from tests.support import parallel_cases, workers

SAID = {
    "parallelize_module": "0.weight is a DTensor",
    "a buffer": "running_mean is a DTensor",
    "fully_shard, unsharded": "the model is a FSDPSequential",
    "fully_shard, a layer": "0 is a FSDPLinear",
    "FSDP1": "the model is a FullyShardedDataParallel",
    "DDP": "the model is a DistributedDataParallel",
}
"""By what was done to a network, what every helper names when it refuses it."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two processes was told, and what the ways out gave it."""
    return workers.run("tests.support.parallel_cases:both", 2, tmp_path_factory.mktemp("parallel"))


@pytest.mark.parametrize("what", SAID)
def test_every_helper_refuses_it_in_one_sentence(what, found):
    asked = set(parallel_cases.helpers(parallel_cases.network()))
    for refusals, _ in found:
        assert refusals[what].keys() == asked
        assert all(SAID[what] in sentence for sentence in refusals[what].values())
        assert "to_local()" in refusals["data"]["func_gradients"]


def test_the_ways_out_are_exact(found):
    model, loss_fn = parallel_cases.network(), F.cross_entropy
    expected = gradients.loop_gradients(model, loss_fn, *parallel_cases.samples())
    for _, ways in found:
        assert set(ways) == set(SAID) - {"a buffer", "DDP"}
        for copied in ways.values():
            torch.testing.assert_close(copied, expected, rtol=1e-5, atol=1e-7)


def test_nobody_pays_for_the_check():
    code = (
        "import sys; from helpers import gradients, norms, privacy, gradient_computers; "
        "import helpers.limits; "
        "sys.exit(any(f'torch.distributed.{each}' in sys.modules for each in ('fsdp', 'tensor')))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=workers.ROOT, check=True)
