"""Random generators of the process and of a model: reading and restoring their state."""

import ctypes
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


def random_state(devices: Iterable[torch.device], generators: Iterable[Any] = ()) -> State:
    """Read the state of all generators that a forward pass on these devices may use."""
    state = [
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    for device in sorted(devices, key=str):
        if device.type == "cpu":  # read above
            continue
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


class OutsideTorch:
    """The generators that transforms do not know, NumPy's and Python's, to see whether they move.

    NumPy copies its state number by number in Python, which takes as long as a small layer. So it
    is read once in this way, and compared by its bytes in memory.
    """

    def __init__(self, generators: Iterable[Any] = ()) -> None:
        self._generators = []
        for generator in generators:
            if not isinstance(generator, torch.Generator):
                self._generators.append(generator)
        self._state = self._read()
        self._of_numpy = np.random.get_state()  # noqa: NPY002
        self._bytes = _numpy_bytes()
        if self._bytes is not None:
            # NumPy draws normal numbers in pairs, and keeps the second one outside of these bytes.
            _, _, _, keeps_second, _ = self._of_numpy
            if keeps_second:
                self._bytes = None

    def have_moved(self) -> bool:
        """Tell whether any of them is in another state than in the beginning."""
        if self._bytes is None:
            now = np.random.get_state()  # noqa: NPY002
            has_numpy_moved = not _is_alike(self._of_numpy, now)
        else:
            has_numpy_moved = self._bytes != _numpy_bytes()
        return has_numpy_moved or self._state != self._read()

    def _read(self) -> list[Any]:
        """Read Python's generator, and those that the model holds."""
        state: list[Any] = [random.getstate()]
        for generator in self._generators:
            read, _ = GENERATORS[type(generator)]
            # As bytes, since a state may hold arrays.
            state.append(pickle.dumps(read(generator)))
        return state


def _numpy_bytes() -> bytes | None:
    """Return the numbers that NumPy's global generator holds; `None` if it is of another kind."""
    generator = np.random.get_bit_generator()
    if not isinstance(generator, np.random.MT19937):
        return None
    # 624 numbers of 4 bytes, and the place of the next one.
    return ctypes.string_at(generator.ctypes.state_address, 625 * 4)


def alike(first: State, second: State, *, outside_torch: bool = False) -> bool:
    """Return whether two states agree: of all generators, or of those unknown to transforms."""
    for (_, before), (_, after) in zip(first, second, strict=True):
        if isinstance(before, Tensor) and outside_torch:
            continue
        if not _is_alike(before, after):
            return False
    return True


def _is_alike(before: Any, after: Any) -> bool:
    """Compare the states of one generator."""
    if isinstance(before, Tensor):
        return torch.equal(before, after)
    if isinstance(before, tuple) and isinstance(before[1], np.ndarray):
        return all(map(np.array_equal, before, after))
    return before == after


@contextmanager
def streams_kept(devices: Iterable[torch.device], generators: Iterable[Any] = ()) -> Iterator[None]:
    """Restore all generators at the end of a block."""
    before = random_state(devices, generators)
    try:
        yield
    finally:
        restore_random_state(before)
