"""The processes of a job: what they share is a counter, a barrier, and exact sums."""

import os
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

_PATIENCE = timedelta(days=1)  # for the slowest shard of another process


class Workers:
    """This process among those that torchrun started; alone if it started none.

    Args:
        device: `"cpu"` or `"cuda"`: what the processes compute on.

    Attributes:
        rank: Which process this is, from 0.
        world: How many there are.
        restarts: How often torchrun has started them again.
    """

    def __init__(self, device: str) -> None:
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        self._device = device
        self._grouped = "RANK" in os.environ

    def __enter__(self) -> Self:
        if not self._grouped:
            self._store: dist.Store = dist.HashStore()
            return self
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=not agent and self.rank == 0,
            wait_for_workers=False,
        )
        # torchrun keeps its store when it starts processes again, with the addresses of those that
        # died in it: each attempt reads and writes under a name of its own.
        self._store = dist.PrefixStore(f"attempt-{self.restarts}-of-{self.world}", store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self._device == "cuda" else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.world,
            timeout=_PATIENCE,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._grouped and kind is None:
            dist.destroy_process_group()

    def count(self, name: str, more: int = 0) -> int:
        """Add to a number that all processes share, and return what it is now."""
        return self._store.add(name, more)

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self._grouped:
            dist.barrier()

    def sum(self, numbers: Tensor) -> Tensor:
        """Add integers of all processes, exactly and in place."""
        if self._grouped:
            dist.all_reduce(numbers)
        return numbers

    def largest(self, number: float) -> float:
        """Return the largest number that a process has."""
        if not self._grouped:
            return number
        held = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(held, dist.ReduceOp.MAX)
        return held.item()
