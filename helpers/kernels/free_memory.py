"""Whether a kernel, and the derivatives that it is made of, fit into the memory that is free."""

import math

import torch
from torch import Tensor


def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros for a kernel; raise ValueError where they do not fit into free memory."""
    size, free = math.prod(shape) * like.element_size(), _free(like.device)
    try:
        if free is None or size <= free:
            return like.new_zeros(shape)
    except RuntimeError:  # where the system does not tell what is free
        pass
    raise ValueError(
        f"the kernel {shape} would have {size / 1e9:,.1f} GB, which are not free: give fewer "
        "samples, or a part of x2 at a time"
    )


def check_chunk(chunk_size: int, rows: int, each: int, like: Tensor) -> None:
    """Raise ValueError for chunks whose derivatives do not fit into the memory that is free."""
    size, free = rows * each * like.element_size(), _free(like.device)
    if free is not None and size > free:
        raise ValueError(
            f"with chunk_size={chunk_size} the Jacobians of two chunks would have "
            f"{size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free: a smaller chunk_size "
            "helps, or method='vector'"
        )


def _free(device: torch.device) -> int | None:
    """Return how many bytes of memory are free; `None` where the system does not tell."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024 if device.type == "cpu" else None
    except (OSError, KeyError):
        return None
