"""One comparison: the candidates of a group on one task, timed, weighed and set out in a table."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from helpers import benchmark, handover
from helpers.study import processes
from helpers.study.candidates import REFERENCE, Task

Study = dict[str, Any]


def run(
    group: str,
    task: Task,
    names: Iterable[str] | None = None,
    *,
    rounds: int = 5,
    min_run_time: float = 0.05,
    budget: float | None = None,
) -> Study:
    """Measure candidates against each other, each in a process of its own.

    Args:
        group: One of `helpers.study.candidates.GROUPS`.
        task: What they compute.
        names: Which candidates of the group; `None` means all.
        rounds: As in `benchmark.measure`, and so are `min_run_time` and `budget`.
        min_run_time: Seconds for each candidate in each round, at least.
        budget: Seconds after which no further round begins.

    Returns:
        What a record holds of it: `group`, `task`, `candidates` with numbers, `absent`, `failed`
        and `cut_short`.
    """
    with processes.started(group, names) as running:
        running.build(task)
        return _measured(running, group, task, rounds, min_run_time, budget)


def grow(
    group: str, task: Task, names: Iterable[str], sizes: Iterable[int], *, rounds: int = 2
) -> list[Study]:
    """Measure the same candidates for several batch sizes, in the same processes.

    Args:
        group: One of `helpers.study.candidates.GROUPS`.
        task: What they compute; its batch size is replaced.
        names: Which candidates of the group.
        sizes: The batch sizes.
        rounds: As in `benchmark.measure`.

    Returns:
        A study for each batch size.
    """
    studies = []
    with processes.started(group, names) as running:
        for size in sizes:
            grown = Task(**{**task.as_dict(), "batch_size": size})
            running.build(grown)
            studies.append(_measured(running, group, grown, rounds, 0.05, None))
    return studies


def table(study: Study, *, reference: str = REFERENCE) -> pd.DataFrame:
    """Set out a study: times, multiples of the reference, memory, page faults, what is not there.

    Args:
        study: What `run` returned, or a record holds.
        reference: The name of the candidate that the others are multiples of.

    Raises:
        ValueError: No candidate that was measured has the reference's name.
    """
    measured = study["candidates"]
    if reference not in measured:
        raise ValueError(f"reference must be one of {', '.join(measured)}, got {reference!r}")
    unit = measured[reference]["median"]
    rows = {
        name: handover.TimingRow(
            row["median"] * 1e3,
            row["iqr"] * 1e3 if row["rounds"] > 1 else None,
            row["median"] / unit,
        )
        for name, row in measured.items()
    }
    missing = dict.fromkeys(study["absent"], "absent") | dict.fromkeys(study["failed"], "failed")
    rendered = {
        name: {
            "median (ms)": round(times.median_ms, 1),
            "spread (ms)": None if times.spread_ms is None else round(times.spread_ms, 1),
            f"times {reference}": round(times.ratio, 2),
            "peak (MiB)": "" if row["peak"] is None else f"{row['peak'] / 2**20:,.0f}",
            "held after (MiB)": "" if row["held"] is None else f"{row['held'] / 2**20:,.0f}",
            "page faults": "" if row["faults"] is None else f"{row['faults']:,}",
        }
        for (name, row), times in zip(measured.items(), rows.values(), strict=True)
    }
    rendered |= {name: {"not measured": why} for name, why in missing.items()}
    frame = pd.DataFrame.from_dict(rendered, orient="index").rename_axis("method")
    texts = [name for name in frame if "(ms)" not in name and not name.startswith("times ")]
    rows |= {name: handover.TimingRow(missing=why) for name, why in missing.items()}
    return handover.Table.of(rows, frame.fillna(dict.fromkeys(texts, "")), reference)


def remarks(study: Study) -> list[str]:
    """Say what its table does not: why candidates were not measured, and why rounds are missing."""
    missing = study["absent"] | study["failed"]
    said = [f"{name}: {why}" for name, why in missing.items()]
    return said + ([study["cut_short"]] if study["cut_short"] else [])


def ratio(study: Study, name: str, to: str) -> float | None:
    """Divide the median of one candidate by that of another; `None` if one was not measured."""
    measured = study["candidates"]
    if name not in measured or to not in measured:
        return None
    return measured[name]["median"] / measured[to]["median"]


def _measured(
    running: processes.Running,
    group: str,
    task: Task,
    rounds: int,
    min_run_time: float,
    budget: float | None,
) -> Study:
    times = benchmark.measure(running, rounds=rounds, min_run_time=min_run_time, budget=budget)
    rows, failed = {}, {**running.failed, **times.failed}
    for name, measurement in times.items():
        try:
            faults = running[name].faults()  # after the timed runs, so that it is like them
        except RuntimeError as error:
            failed[name] = str(error)
            continue
        rows[name] = {
            "median": measurement.median,
            "iqr": measurement.iqr,
            "rounds": len(measurement.times),
            **{key: running[name].weight[key] for key in ("peak", "held", "first")},
            "faults": faults,
        }
    return {
        "group": group,
        "task": task.as_dict(),
        "candidates": rows,
        "absent": dict(running.absent),
        "failed": failed,
        "cut_short": times.cut_short,
    }
