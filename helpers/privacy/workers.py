"""Sums over the processes of a group, which must have the same settings."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def check_group(group: "dist.ProcessGroup") -> None:
    """Refuse what is no group that this process belongs to.

    Raises:
        TypeError: It is none.
    """
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            "group must be a torch.distributed.ProcessGroup that this process belongs to, got "
            f"{type(group).__name__}"
        )


def add_up(group: "dist.ProcessGroup", tensors: Sequence[Tensor], **settings: float) -> None:
    """Replace tensors by their sums over the processes of a group, of the same bits in each.

    One reduction of a few numbers compares settings and sizes; one more for each device and dtype,
    so in most cases one, has the sums.

    Args:
        group: The processes, all of which call this.
        tensors: Of the same shapes in each, in the same order.
        settings: Numbers that must be the same in each.

    Raises:
        ValueError: A setting differs, or how many numbers there are to add. All processes raise it.
    """
    if not tensors:
        return
    sizes = {"the number of trained parameters": sum(tensor.numel() for tensor in tensors)}
    numbers = {name: float(number) for name, number in (settings | sizes).items()}
    _check_alike(group, numbers, tensors[0].device)
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    for each in alike.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in each])
        dist.all_reduce(flat, group=group)
        parts = flat.split([tensor.numel() for tensor in each])
        for tensor, part in zip(each, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _check_alike(
    group: "dist.ProcessGroup", numbers: Mapping[str, float], device: torch.device
) -> None:
    own = torch.tensor([*numbers.values()], dtype=torch.float64, device=device)
    both = torch.stack([own, -own])
    dist.all_reduce(both, dist.ReduceOp.MAX, group)
    most, least = both[0].tolist(), (-both[1]).tolist()
    for name, high, low in zip(numbers, most, least, strict=True):
        if high != low:
            raise ValueError(
                f"{name} must be the same in all processes of the group, got {numbers[name]:g} in "
                f"this one, and from {low:g} to {high:g} in all"
            )
