"""One comparison: the candidates of a group on one task, timed in turns and weighed."""

from collections.abc import Iterable
from dataclasses import replace

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
    with processes.started(group, chosen) as running:
        running.build(task)
        return _measured(running, group, task, rounds, min_run_time, budget)


def grow(
    group: str, task: Task, chosen: Iterable[Candidate], sizes: Iterable[int], *, rounds: int = 2
) -> list[Study]:
    """Measure the same candidates for several batch sizes, in the same processes.

    Args:
        group: One of `helpers.study.candidates.GROUPS`.
        task: What they compute; its batch size is replaced.
        chosen: Which candidates.
        sizes: The batch sizes.
        rounds: As in `benchmark.measure`.

    Returns:
        A study for each batch size.
    """
    studies = []
    with processes.started(group, chosen) as running:
        for size in sizes:
            grown = replace(task, batch_size=size)
            running.build(grown)
            studies.append(_measured(running, group, grown, rounds, 0.05, None))
    return studies


def _measured(
    running: processes.Running,
    group: str,
    task: Task,
    rounds: int,
    min_run_time: float,
    budget: float | None,
) -> Study:
    times = benchmark.measure(running, rounds=rounds, min_run_time=min_run_time, budget=budget)
    missing = [*running.missing]
    missing += [
        Missing(candidate, absent=False, why=why) for candidate, why in times.failed.items()
    ]
    rows = []
    for candidate, measurement in times.items():
        process = running[candidate]
        try:
            faults = process.faults()  # after the timed runs, so that it is like them
        except RuntimeError as error:
            missing.append(Missing(candidate, absent=False, why=str(error)))
            continue
        numbers = {"median": measurement.median, "iqr": measurement.iqr}
        rounds_done = len(measurement.times)
        rows.append(Row(candidate, **numbers, rounds=rounds_done, faults=faults, **process.weight))
    return Study(group, task, tuple(rows), tuple(missing), times.cut_short)
