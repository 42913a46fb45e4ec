"""The processes of a job: what they share is a counter, a barrier, and exact sums."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

_PATIENCE = timedelta(days=1)  # for the slowest shard of another process


class Workers:
    """This process among those that torchrun started; alone if it started none."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", 0))  # which process this is
        self.world = int(os.environ.get("WORLD_SIZE", 1))  # how many there are
        self.restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        self._grouped = "RANK" in os.environ
        self._store: dist.Store = dist.HashStore()
        if self._grouped:
            agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            port, first = int(os.environ["MASTER_PORT"]), not agent and self.rank == 0
            store = dist.TCPStore(
                os.environ["MASTER_ADDR"], port, is_master=first, wait_for_workers=False
            )
            # torchrun keeps its store when it starts processes again, with the addresses of those
            # that died in it: each attempt reads and writes under a name of its own.
            self._store = dist.PrefixStore(f"attempt-{self.restarts}-of-{self.world}", store)

    @classmethod
    @contextmanager
    def joined(cls, device: str) -> Iterator["Workers"]:
        """Join the group of all processes, for a block that computes on `"cpu"` or `"cuda"`."""
        workers = cls()
        if workers._grouped:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
                store=workers._store,
                rank=workers.rank,
                world_size=workers.world,
                timeout=_PATIENCE,
            )
        yield workers
        if workers._grouped:
            dist.destroy_process_group()

    def count(self, name: str, more: int = 0) -> int:
        """Add to a number that all processes share, and return what it is now."""
        return self._store.add(name, more)

    def claim(self, name: str, count: int) -> Iterator[int]:
        """Yield numbers below `count`, each in one process: who is free takes the next."""
        while (index := self.count(name, 1) - 1) < count:
            yield index

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self._grouped:
            dist.barrier()

    def sum(self, numbers: Tensor) -> None:
        """Add integers of all processes, exactly and in place."""
        if self._grouped:
            dist.all_reduce(numbers)

    def largest(self, number: float) -> float:
        """Return the largest number that a process has."""
        held = torch.tensor(number, dtype=torch.float64)
        if self._grouped:
            dist.all_reduce(held, dist.ReduceOp.MAX)
        return held.item()
