"""Private training by the processes of a group; run by `tests.support.workers` in each of them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import privacy
from tests.support.zoo import Apply

N, RATE, STEPS = 40, 0.2, 6
OPTIONS = {"limit": 0.5, "noise_multiplier": 0.8}


def network(seed: int = 0) -> nn.Module:
    """Make a network with a parameter in another precision than the rest."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    scale = nn.Parameter(torch.ones((), dtype=torch.float64))
    return Apply(lambda m, x: m.body(x) * m.scale.to(x.dtype), body=body, scale=scale)


def samples() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(N, 5), torch.randint(3, (N,))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def train(rank: int, world: int, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    """Take some steps of DP-SGD, and return the weights."""
    model, (data, targets) = network(), samples()
    noise = seeded(7 + rank)  # that of the first process is the one that counts
    for batch in privacy.poisson_batches(N, RATE, STEPS, seeded(5)):
        share = batch[rank::world]
        args = model, F.cross_entropy, data[share], targets[share]
        total = privacy.private_sum(*args, **OPTIONS, generator=noise, group=group)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.5 * total[name] / (RATE * N)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def once(
    count: int, rank: int, world: int, group: object, model: nn.Module | None = None, **options: Any
) -> dict[str, Tensor]:
    """Add up over the first samples, each process its share of them."""
    data, targets = (part[:count][rank::world] for part in samples())
    settings = OPTIONS | {"generator": seeded(7 + rank), "group": group} | options
    return privacy.private_sum(model or network(), F.cross_entropy, data, targets, **settings)


def in_a_group() -> dict[str, object]:
    """Do what one process does, as one of the processes of the whole group."""
    rank, world, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    mine = rank, world, group
    found: dict[str, object] = {
        "trained": train(*mine),
        "empty shares": once(1, *mine),
        "an empty batch": once(0, *mine),
        "without noise": once(N, *mine, noise_multiplier=0.0),
    }
    same = seeded(3)
    once(N, *mine, generator=same)
    found["next draw"] = torch.rand(1, generator=same)
    found["alone"] = once(N, 0, 1, None)
    if world == 1:
        return found
    found["refused"] = [
        _refused(lambda: once(N, *mine, noise_multiplier=0.5 + rank)),
        _refused(lambda: once(N, *mine, limit=1.0 - 0.25 * rank)),
        _refused(lambda: once(N, *mine, nn.Linear(5, 3 + rank))),
        _refused(lambda: once(N, *mine, network(seed=rank))),
    ]
    rounded = network()
    rounded.body[0].weight.data *= 1 + 1e-6 * rank
    found["rounded"] = once(N, *mine, rounded)
    last = dist.new_group([world - 2, world - 1])  # in which another process is the first
    if rank >= world - 2:
        found["a smaller group"] = once(N, rank - (world - 2), 2, last, generator=seeded(rank))
    else:
        found["a smaller group"] = _refused(lambda: once(N, 0, 1, last))
    return found


def _refused(compute: Callable[[], object]) -> str:
    try:
        compute()
    except (TypeError, ValueError) as error:
        return str(error)
    return "not at all"
