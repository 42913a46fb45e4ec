"""Choose a device by name, and make runs repeatable."""

import random
from numbers import Integral

import numpy as np
import torch


def available() -> list[str]:
    """List the devices of this machine, best first, for example `["cuda:0", "cpu"]`."""
    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


def resolve(device: str | torch.device = "auto") -> torch.device:
    """Resolve a device name to a device of this machine.

    Args:
        device: `"auto"` (the best available), `"cpu"`, `"cuda"` (the first GPU), `"cuda:1"`,
            `"mps"`, or a `torch.device`.

    Returns:
        The device, with the index of the GPU if it is one.

    Raises:
        ValueError: The name is none of these, or this machine has no such device.
    """
    names = available()
    name = str(device).strip().lower()
    if name == "auto":
        name = names[0]
    if f"{name}:0" in names:  # the first GPU
        name = f"{name}:0"
    if name not in names:
        raise ValueError(
            f"device {str(device)!r} is not on this machine, which has {', '.join(names)}: "
            "choose one of these, or 'auto' for the best of them"
        )
    return torch.device(name)


def for_float64(device: torch.device) -> torch.device:
    """Return the device if it supports float64 (MPS does not), else the CPU."""
    return torch.device("cpu") if device.type == "mps" else device


def make_repeatable(seed: int = 0) -> None:
    """Seed all generators, and turn off TF32, which rounds float32 inputs to 10 bits on GPUs.

    Args:
        seed: An integer from 0 to 2**32 - 1.

    Raises:
        ValueError: The seed is out of range, or not an integer.
    """
    check_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (what scikit-learn draws from by default)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def check_seed(seed: int) -> None:
    """Raise ValueError unless a seed is an integer from 0 to 2**32 - 1."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}")
