"""Random streams: where they are, whether a forward pass drew from them, and how to set them back.

The process has streams of Python, NumPy and torch; a model may hold generators of its own.
"""

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from helpers.transforms.known_wrong import Refusal

RANDOMNESS = (
    "the model draws random numbers (dropout in training mode?), or another thread did, and "
    "nothing says whether samples share them: call model.eval(), or pass randomness='different' or "
    "'same' where it is taken"
)
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

State = list[tuple[Callable[[Any], Any], Any]]  # what sets a stream back, and where it is


def random_state(device: torch.device, generators: Iterable[Any] = ()) -> State:
    """Read where the streams are that a forward pass on this device may draw from."""
    streams = [
        (random.getstate, random.setstate),
        (np.random.get_state, np.random.set_state),
        (torch.get_rng_state, torch.set_rng_state),
    ]
    if device.type != "cpu":
        # The device is named where there are several, since it need not be the current one.
        own, named = torch.get_device_module(device), {"device": device}
        named = {} if device.type == "mps" else named
        streams.append((partial(own.get_rng_state, **named), partial(own.set_rng_state, **named)))
    for each in generators:
        if isinstance(each, np.random.Generator):
            bits = each.bit_generator
            streams.append((partial(getattr, bits, "state"), partial(setattr, bits, "state")))
        elif isinstance(each, random.Random):
            if not isinstance(each, random.SystemRandom):  # which has no state
                streams.append((each.getstate, each.setstate))
        else:
            streams.append((each.get_state, each.set_state))
    state = []
    for read, put_back in streams:
        state.append((put_back, read()))
    return state


def restore_random_state(state: State) -> None:
    """Set the streams back to where `random_state` read them."""
    for put_back, value in state:
        put_back(value)


def alike(one: State, other: State, *, outside_torch: bool = False) -> bool:
    """Return whether streams are where they were, or those of which no transform of torch knows."""
    for (_, before), (_, after) in zip(one, other, strict=True):
        if not isinstance(before, Tensor):
            if pickle.dumps(before) != pickle.dumps(after):
                return False
        elif not outside_torch and not torch.equal(before, after):
            return False
    return True


@contextmanager
def attempt(device: torch.device, generators: Iterable[Any], randomness: str) -> Iterator[State]:
    """Yield where the streams are; raise a refusal if a block draws what `vmap` does not know of.

    Where it raises, the streams are set back, unless `randomness` is `"error"`: then the loop
    refuses draws as well, and the streams may have been moved by another thread.
    """
    first = random_state(device, generators)
    try:
        yield first
        last = random_state(device, generators)
        if randomness != "same" and not alike(first, last, outside_torch=True):
            raise Refusal("NumPy or Python, or another thread, draws random numbers, once for all")
    except Exception:
        if randomness != "error":
            restore_random_state(first)
        raise


@contextmanager
def streams_kept(device: torch.device, generators: Iterable[Any] = ()) -> Iterator[None]:
    """Set all random streams back at the end of a block."""
    before = random_state(device, generators)
    try:
        yield
    finally:
        restore_random_state(before)
