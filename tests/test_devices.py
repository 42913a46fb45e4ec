"""Devices by name, as seen on machines that have them and on machines that do not."""

import random

import numpy as np
import pytest
import torch

from helpers import devices


@pytest.fixture
def machine(monkeypatch):
    """Pretend that the machine has so many GPUs, or Apple's."""

    def pretend(gpus: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    ("gpus", "mps", "names"),
    [(0, False, ["cpu"]), (0, True, ["mps", "cpu"]), (2, True, ["cuda:0", "cuda:1", "mps", "cpu"])],
)
def test_available_lists_the_best_first(machine, gpus, mps, names):
    machine(gpus, mps)
    assert devices.available() == names
    assert devices.resolve() == torch.device(names[0])


RESOLVED = {"cpu": "cpu", "CPU": "cpu", " cpu ": "cpu", "cuda": "cuda:0", "Cuda:1": "cuda:1"}
RESOLVED |= {"mps": "mps", torch.device("cuda"): "cuda:0", torch.device("cuda", 1): "cuda:1"}


@pytest.mark.parametrize("asked", RESOLVED, ids=str)
def test_resolve_finds_what_is_there(machine, asked):
    machine(2, mps=True)
    assert str(devices.resolve(asked)) == RESOLVED[asked]


@pytest.mark.parametrize("asked", ["cuda:2", "mps", "gpu", "", "cuda:", "cuda:01", None])
def test_resolve_refuses_what_is_not_there_and_names_what_is(machine, asked):
    machine(2)
    with pytest.raises(ValueError, match="which has cuda:0, cuda:1, cpu"):
        devices.resolve(asked)


def test_the_cpu_computes_in_float64_where_mps_cannot():
    assert devices.for_float64(torch.device("mps")) == torch.device("cpu")
    for name in ("cpu", "cuda:1"):
        assert devices.for_float64(torch.device(name)) == torch.device(name)


def draws() -> tuple[float, ...]:
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


def test_make_repeatable_seeds_every_stream():
    devices.make_repeatable(0)
    first = draws()
    devices.make_repeatable(2**32 - 1)
    assert all(a != b for a, b in zip(first, draws(), strict=True))
    devices.make_repeatable(0)
    assert draws() == first


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, True])
def test_a_seed_that_is_no_such_number_is_refused(seed):
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="seed"):
        devices.make_repeatable(seed)
    assert torch.equal(torch.get_rng_state(), before)


def test_float32_means_float32_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = True
        devices.make_repeatable()
        assert [switch.allow_tf32 for switch in switches] == [False, False]
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value
