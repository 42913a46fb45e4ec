"""Choose a device by name, and make runs repeatable."""

import random
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
import torch


def available() -> list[str]:
    """List the devices of this machine, best first, for example `["cuda:0", "cuda:1", "cpu"]`."""
    names = []
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        for index in range(torch.accelerator.device_count()):
            names.append(f"{accelerator.type}:{index}")
    return [*names, "cpu"]


def resolve(device: str | torch.device = "auto") -> torch.device:
    """Resolve a device name to a device of this machine.

    Args:
        device: `"auto"` (the best available), `"cpu"`, `"cuda"`, `"cuda:1"`, `"mps"`, `"xpu"`, or a
            `torch.device`. Without an index it is the current device of its kind, as in torch:
            the first, unless `torch.cuda.set_device` chose another one.

    Returns:
        The device, with its index unless it is the CPU: what `tensor.device` is for a tensor there.

    Raises:
        ValueError: The name is none of these, or this machine has no such device.
    """
    names = available()
    name = str(device).strip().lower()
    if name == "auto":
        name = names[0].partition(":")[0]
    if name != "cpu" and f"{name}:0" in names:  # there are devices of this kind
        name = f"{name}:{torch.accelerator.current_device_index()}"
    if name not in names:
        raise ValueError(
            f"device {str(device)!r} is not on this machine, which has {', '.join(names)}: "
            "choose one of these, or 'auto' for the best of them"
        )
    return torch.device(name)


def for_float64(device: torch.device) -> torch.device:
    """Return the device if it has float64 (Apple's MPS does not), else the CPU."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return torch.device("cpu")
    return device


def make_repeatable(seed: int = 0) -> None:
    """Seed all generators, and turn off TF32, which rounds float32 inputs to 10 bits on GPUs.

    Two runs with one seed on one machine then draw the same random numbers. They give the same bits
    unless a GPU adds numbers in another order each time, as some operations there may;
    `torch.use_deterministic_algorithms(True)` refuses these.

    Args:
        seed: An integer from 0 to 2**32 - 1.

    Raises:
        ValueError: The seed is out of range, or not an integer.
    """
    check_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (what scikit-learn draws from by default)
    torch.manual_seed(seed)
    use_full_float32()


def use_full_float32() -> Callable[[], None]:
    """Let matrix products and convolutions of float32 tensors keep all 24 bits.

    torch lets cuDNN round the inputs of convolutions to TF32 by default, and matrix products if
    `torch.set_float32_matmul_precision` says so, which also holds for oneDNN on CPUs.

    Returns:
        A function that puts the switches back.
    """
    # Any: modules of torch get these switches while they are imported, which no checker sees.
    backends: Any = torch.backends
    switches = [
        backends.cudnn.conv,
        backends.cudnn.rnn,
        backends.cuda.matmul,
        backends.mkldnn.conv,
        backends.mkldnn.matmul,
    ]
    before = [switch.fp32_precision for switch in switches]
    # The switch of older releases stays readable only if it agrees: `torch.backends.cudnn.flags`
    # reads it. torch raises an error where a caller has set the newer ones to differ from it.
    try:
        older = backends.cudnn.allow_tf32
    except RuntimeError:
        older = None
    if older is not None:
        backends.cudnn.allow_tf32 = False
    for switch in switches:
        switch.fp32_precision = "ieee"

    def put_back() -> None:
        if older is not None:
            backends.cudnn.allow_tf32 = older
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision

    return put_back


def check_seed(seed: int) -> None:
    """Raise ValueError unless a seed is an integer from 0 to 2**32 - 1."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, got {seed!r}")
