"""One comparison: the candidates of a group on one task, timed in turns and weighed."""

from collections.abc import Iterable
from contextlib import suppress

from helpers import benchmark
from helpers.study import processes
from helpers.study.facts import Candidate, Missing, Row, Study, Task


def run(
    group: str,
    task: Task,
    chosen: Iterable[Candidate] | None = None,
    *,
    rounds: int = 5,
    min_run_time: float = 0.05,
    budget: float | None = None,
) -> Study:
    """Measure candidates against each other, each in a process of its own.

    Args:
        group: One of `helpers.study.candidates.GROUPS`.
        task: What they compute.
        chosen: Which candidates; `None` means those of the group.
        rounds: As in `benchmark.measure`, and so are `min_run_time` and `budget`.
        min_run_time: Seconds for each candidate in each round, at least.
        budget: Seconds after which no further round begins.
    """
    with processes.started(group, task, chosen) as (running, missing):
        times = benchmark.measure(running, rounds=rounds, min_run_time=min_run_time, budget=budget)
        for candidate, why in times.failed.items():
            missing.append(Missing(candidate, absent=False, why=why))
        rows = []
        for candidate, measured in times.items():
            process, faults = running[candidate], None
            with suppress(RuntimeError):  # its process ended when it was interrupted
                faults = process.ask("faults")  # after the timed runs, so that it is like them
            numbers = {"median": measured.median, "iqr": measured.iqr, "faults": faults}
            rows.append(Row(candidate, rounds=len(measured.times), **numbers, **process.weight))
    return Study(group, task, tuple(rows), tuple(missing), times.cut_short)
