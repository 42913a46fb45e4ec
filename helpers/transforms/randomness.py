"""Random streams: which a forward draws from, whether it drew, and back to where they were."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

RANDOMNESS = (
    "the model draws random numbers (dropout in training mode?) and nothing says whether samples "
    "share them: call model.eval(), or pass randomness='different' or 'same' where it is taken"
)


State = tuple[Tensor, ...]
"""Where the stream of the CPU is, and behind it that of a device, where it has one of its own."""


def random_state(device: torch.device) -> State:
    """Read where the streams are that a forward on this device draws from.

    That of the CPU is always one of them: a model on a GPU may draw there too.
    """
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(*_index(device)))
    return tuple(states)


def restore_random_state(state: State, device: torch.device) -> None:
    """Set the streams back to where `random_state` read them."""
    of_cpu, *own = state
    torch.set_rng_state(of_cpu)
    for of_device in own:
        torch.get_device_module(device).set_rng_state(of_device, *_index(device))


def alike(one: State, other: State) -> bool:
    """Return whether streams are where they were."""
    return all(map(torch.equal, one, other))


@contextmanager
def streams_kept(device: torch.device) -> Iterator[None]:
    """Give all random streams back as they were, those of NumPy and Python too."""
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    of_torch = random_state(device)
    try:
        yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
        restore_random_state(of_torch, device)


def _index(device: torch.device) -> tuple[torch.device, ...]:
    """Name the device where there are several, since it need not be the current one."""
    return () if device.type == "mps" else (device,)
