"""What a process of a study runs: one candidate, built, timed and weighed on request."""

import time
from typing import Any

from helpers.study.requests import serve


class Worker:
    """Builds one candidate and runs it."""

    run: Any = None

    def build(
        self,
        group: str,
        candidate: dict[str, Any],
        task: dict[str, Any],
        batch: str,
        threads: int,
    ) -> None:
        """Make the function that is timed, and free the one before."""
        import torch

        from helpers import memory
        from helpers.study import candidates
        from helpers.study.facts import Candidate, Task

        self.run = None
        torch.set_num_threads(threads)
        chosen, self.task = Candidate(**candidate), Task(**task)
        if chosen.keep_freed and not hasattr(self, "kept"):
            self.kept = memory.keep_freed()
            self.kept.__enter__()  # until the process ends
        # Read from a file, since scikit-learn takes longer to import than a batch to compute.
        images, labels = torch.load(batch, map_location=self.task.device)
        model = candidates.make_model(self.task)
        self.run = candidates.GROUPS[group].build(chosen, model, images, labels)

    def weigh(self) -> dict[str, Any]:
        """Run twice: how long the first takes, the peak of memory above what was there.

        On a GPU memory is that of PyTorch's allocator: at the peak what tensors had of it, and held
        is what it has not given back.
        """
        import torch

        from helpers import memory

        device = torch.device(self.task.device)
        on_gpu = device.type == "cuda"

        def used() -> tuple[int | None, int | None]:
            """Return the most that was in use, and what is held now."""
            if on_gpu:
                torch.cuda.synchronize(device)
                return torch.cuda.max_memory_allocated(device), torch.cuda.memory_reserved(device)
            return memory.high_water(), memory.resident()

        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)  # to what is in use now
        peak, held = used()
        start = time.perf_counter()
        self.run()
        if on_gpu:
            torch.cuda.synchronize(device)
        first = time.perf_counter() - start
        self.run()
        peak_after, held_after = used()
        return {
            "first": first,
            "peak": None if peak is None else peak_after - peak,
            "held": None if held is None else held_after - held,
        }

    def time(self, runs: int) -> list[float]:
        """Time `runs` runs with torch's timer."""
        import torch
        from torch.utils.benchmark import Timer

        threads = torch.get_num_threads()
        timer = Timer("run()", globals={"run": self.run}, num_threads=threads)
        return timer.timeit(runs).raw_times

    def faults(self) -> int | None:
        """Run once more, and count its page faults; the first runs of a process make others."""
        from helpers.memory import page_faults

        before = page_faults()
        self.run()
        return None if before is None else page_faults() - before

    def save(self, path: str) -> None:
        """Run once, and save the result as a dictionary of tensors."""
        import torch

        torch.save(self.run(), path)


if __name__ == "__main__":
    from helpers import devices  # and torch: a process that has answered nothing yet is warm

    devices.make_repeatable(0)  # on a GPU, too, float32 is measured, and not TF32
    worker = Worker()
    serve({name: getattr(worker, name) for name in ("build", "weigh", "time", "faults", "save")})
