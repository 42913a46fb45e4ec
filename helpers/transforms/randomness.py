"""Random streams: where they are, whether a forward pass drew from them, and back again."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

RANDOMNESS = (
    "the model draws random numbers (dropout in training mode?) and nothing says whether samples "
    "share them: call model.eval(), or pass randomness='different' or 'same' where it is taken"
)

State = tuple[Any, ...]  # of Python, NumPy and torch, and of a device that has its own


def random_state(device: torch.device) -> State:
    """Read where the streams are that a forward pass on this device may draw from."""
    states = [random.getstate(), np.random.get_state(), torch.get_rng_state()]  # noqa: NPY002
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(*_index(device)))
    return tuple(states)


def restore_random_state(state: State, device: torch.device) -> None:
    """Set the streams back to where `random_state` read them."""
    of_python, of_numpy, of_cpu, *of_device = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)  # noqa: NPY002
    torch.set_rng_state(of_cpu)
    for own in of_device:
        torch.get_device_module(device).set_rng_state(own, *_index(device))


def alike(one: State, other: State) -> bool:
    """Return whether all streams are where they were."""
    return alike_outside_torch(one, other) and all(map(torch.equal, one[2:], other[2:]))


def alike_outside_torch(one: State, other: State) -> bool:
    """Return whether the streams of Python and NumPy are, which no transform of torch knows."""
    (_, keys, *rest), (_, others, *last) = one[1], other[1]  # of NumPy's, keys are an array
    return one[0] == other[0] and rest == last and np.array_equal(keys, others)


@contextmanager
def streams_kept(device: torch.device) -> Iterator[None]:
    """Set all random streams back at the end of a block."""
    before = random_state(device)
    try:
        yield
    finally:
        restore_random_state(before, device)


def _index(device: torch.device) -> tuple[torch.device, ...]:
    """Name the device where there are several, since it need not be the current one."""
    return () if device.type == "mps" else (device,)
