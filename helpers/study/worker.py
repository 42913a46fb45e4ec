"""The process of a candidate that runs with torch: `python -m helpers.study.worker`."""

from typing import Any

import torch

from helpers import benchmark, devices, memory
from helpers.study import candidates
from helpers.study.facts import KEEP_FREED, Candidate, Task
from helpers.study.requests import Worker


class TorchWorker(Worker):
    """Builds one candidate with torch and runs it."""

    def build(
        self, group: str, candidate: dict[str, Any], task: dict[str, Any], batch: str, threads: int
    ) -> None:
        """Make the function that is timed."""
        torch.set_num_threads(threads)
        chosen, made = Candidate(**candidate), Task(**task)
        self.device = torch.device(made.device)
        if chosen.allocator == KEEP_FREED:
            self.kept = memory.keep_freed()
            self.kept.__enter__()  # until the process ends
        # Read from a file, since scikit-learn takes longer to import than a batch to compute.
        images, labels = torch.load(batch, map_location=self.device)
        self.run = candidates.build(group, chosen, candidates.make_model(made), images, labels)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)  # to what is in use now

    def used(self) -> tuple[int | None, int | None]:
        """Return memory as `Worker.used`; on a GPU, that of tensors and what PyTorch holds."""
        if self.device.type != "cuda":
            return super().used()
        torch.cuda.synchronize(self.device)
        most = torch.cuda.max_memory_allocated(self.device)
        return most, torch.cuda.memory_reserved(self.device)

    def time(self, runs: int) -> list[float]:
        """Time `runs` runs with torch's timer."""
        return benchmark.timer(self.run).timeit(runs).raw_times


if __name__ == "__main__":
    devices.make_repeatable(0)  # on a GPU, too, float32 is measured, and not TF32
    TorchWorker().serve()
