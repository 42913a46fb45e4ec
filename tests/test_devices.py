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


def test_the_best_device_is_listed_first(machine):
    for gpus, mps, names in ((0, False, "cpu"), (2, True, "cuda:0 cuda:1 mps cpu")):
        machine(gpus, mps)
        assert devices.available() == names.split()
        assert devices.resolve() == torch.device(names.split()[0])


def test_resolve_finds_what_is_there(machine):
    machine(2, mps=True)
    found = {" CPU ": "cpu", "cuda": "cuda:0", "Cuda:1": "cuda:1", "mps": "mps"}
    for asked, name in (found | {torch.device("cuda", 1): "cuda:1"}).items():
        assert str(devices.resolve(asked)) == name
    assert devices.for_float64(torch.device("mps")) == torch.device("cpu")
    assert devices.for_float64(torch.device("cuda:1")) == torch.device("cuda:1")


@pytest.mark.parametrize("asked", ["cuda:2", "mps", "gpu"])
def test_resolve_refuses_what_is_not_there_and_names_what_is(machine, asked):
    machine(2)
    with pytest.raises(ValueError, match="cuda:0, cuda:1, cpu"):
        devices.resolve(asked)


def draws() -> tuple[float, ...]:
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


def test_make_repeatable_seeds_every_stream():
    devices.make_repeatable(0)
    first = draws()
    devices.make_repeatable(1)
    assert all(a != b for a, b in zip(first, draws(), strict=True))
    devices.make_repeatable(0)
    assert draws() == first


def test_a_seed_below_zero_is_refused():
    with pytest.raises(ValueError, match="seed"):
        devices.make_repeatable(-1)


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
