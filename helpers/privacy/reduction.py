"""Sums over the processes of a group, which must have the same settings and weights."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

_SUM, _NORM = "the sum of the weights", "the norm of the weights"
_SLACK = 1e-3
"""How far sums of weights may be apart, as a share of the norm of the weights.

Weights of other seeds are apart by about that norm. Those of one seed may come apart in their last
places, on machines that round in other ways.
"""


def check_group(group: "dist.ProcessGroup") -> None:
    """Raise TypeError unless this is a group that this process belongs to."""
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            "group must be a torch.distributed.ProcessGroup that this process belongs to, got "
            f"{type(group).__name__}"
        )


def add_up(
    group: "dist.ProcessGroup", model: nn.Module, tensors: Sequence[Tensor], **settings: float
) -> None:
    """Replace tensors by their sums over the processes of a group, of the same bits in each.

    One reduction of a few numbers compares settings, sizes and weights, and all processes raise
    ValueError where they differ; one more for each device and dtype has the sums.
    """
    if not tensors:
        return
    device = tensors[0].device
    size = {"the number of trained parameters": sum(tensor.numel() for tensor in tensors)}
    _check_alike(group, settings | size | _weights(model, device), device)
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    for each in alike.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in each])
        dist.all_reduce(flat, group=group)
        parts = flat.split([tensor.numel() for tensor in each])
        for tensor, part in zip(each, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _weights(model: nn.Module, device: torch.device) -> dict[str, float]:
    """Summarise the weights of a model, frozen ones too, by two numbers."""
    weights = [p.detach() for p in model.parameters() if p.is_floating_point()]
    sums = [torch.sum(weight, dtype=torch.float64) for weight in weights]
    norms = [torch.linalg.vector_norm(weight, dtype=torch.float64) for weight in weights]
    sums, norms = (torch.stack([each.to(device) for each in them]) for them in (sums, norms))
    return {_SUM: sums.sum().item(), _NORM: norms.norm().item()}


def _check_alike(
    group: "dist.ProcessGroup", numbers: Mapping[str, float], device: torch.device
) -> None:
    here = torch.tensor([float(each) for each in numbers.values()], dtype=torch.float64)
    both = torch.stack([here, -here]).to(device)
    dist.all_reduce(both, dist.ReduceOp.MAX, group)
    most, least = both[0].tolist(), (-both[1]).tolist()
    slack = _SLACK * dict(zip(numbers, most, strict=True))[_NORM]
    for (name, own), high, low in zip(numbers.items(), most, least, strict=True):
        if high - low > (slack if name in (_SUM, _NORM) else 0):
            raise ValueError(
                f"{name} must be the same in all processes of the group, got {float(own):g} in "
                f"this one, and from {low:g} to {high:g} in all"
            )
