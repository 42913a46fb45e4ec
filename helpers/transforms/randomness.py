"""Random generators of the process and of a model: reading and restoring their state."""

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

RANDOMNESS = (
    "the model draws random numbers (dropout in training mode?), or another thread did, and "
    "nothing says whether samples share them: call model.eval(), or pass randomness='different' "
    "or 'same' to a function that takes it"
)
GENERATORS = {
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (
        lambda generator: pickle.dumps(generator.bit_generator.state),
        lambda generator, state: setattr(generator.bit_generator, "state", pickle.loads(state)),
    ),
}
"""How the states of generators are read and set."""

State = list[tuple[Callable[[Any], Any], Any]]  # each stream's setter, and its state


def random_state(device: torch.device, generators: Iterable[Any] = ()) -> State:
    """Read the state of all generators that a forward pass on this device may use."""
    state = [
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    if device.type != "cpu":
        module = torch.get_device_module(device)
        # Pass the device where there can be several: it need not be the current one.
        named = {} if device.type == "mps" else {"device": device}
        state.append((partial(module.set_rng_state, **named), module.get_rng_state(**named)))
    for generator in generators:
        read, put_back = GENERATORS[type(generator)]
        state.append((partial(put_back, generator), read(generator)))
    return state


def restore_random_state(state: State) -> None:
    """Restore the state that `random_state` read."""
    for put_back, value in state:
        put_back(value)


def alike(first: State, second: State, *, outside_torch: bool = False) -> bool:
    """Return whether two states agree: of all generators, or of those unknown to transforms."""
    for (_, before), (_, after) in zip(first, second, strict=True):
        if isinstance(before, Tensor):
            same = outside_torch or torch.equal(before, after)
        else:
            of_numpy = isinstance(before[1], np.ndarray)
            same = all(map(np.array_equal, before, after)) if of_numpy else before == after
        if not same:
            return False
    return True


@contextmanager
def streams_kept(device: torch.device, generators: Iterable[Any] = ()) -> Iterator[None]:
    """Restore all generators at the end of a block."""
    before = random_state(device, generators)
    try:
        yield
    finally:
        restore_random_state(before)
