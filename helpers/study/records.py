"""What was measured, on which machine, with what and when: plain facts, kept as JSON."""

import json
import os
import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

DEFAULT, KEEP_FREED, HUGE_PAGES = "default", "freed memory kept", "huge pages"
"""The allocators: glibc as it comes, with `helpers.memory.keep_freed`, with pages of 2 MiB."""
REFERENCE = "batch gradient"
"""The method that the others are multiples of."""
BOUND = 0.4
"""The spread, as a share of the median, above which a row is no measurement: half of the rounds
then lie further apart than that, and the ratios of two such rows say nothing."""


@dataclass(frozen=True)
class Task:
    """What is to be differentiated: a model, with weights from a seed, on a batch."""

    model: str = "SimpleCNN"
    batch_size: int = 64
    dataset: str = "digits"
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Candidate:
    """A method of `helpers.study.candidates`, and the settings under which it runs."""

    method: str
    compiled: bool = False  # through `torch.compile`
    allocator: str = DEFAULT  # what becomes of freed memory in its process

    def __str__(self) -> str:
        allocator = "" if self.allocator == DEFAULT else self.allocator
        return ", ".join(filter(None, [self.method, "compiled" * self.compiled, allocator]))


@dataclass(frozen=True)
class Row:
    """What was measured of a candidate; times are in seconds, `None` is what no system told."""

    candidate: Candidate
    median: float  # of the rounds
    iqr: float  # the distance of their quartiles
    rounds: int
    peak: int | None  # bytes at the worst moment, above those before
    held: int | None  # bytes that are still held when the result is gone
    faults: int | None  # page faults of a run
    first: float  # the first run, compilation included

    @property
    def times(self) -> range:
        """As many as there were rounds, for `helpers.benchmark.table`."""
        return range(self.rounds)


@dataclass(frozen=True)
class Missing:
    """A candidate that was not measured: it is not installed here (`absent`), or it failed."""

    candidate: Candidate
    absent: bool
    why: str


@dataclass(frozen=True)
class Study:
    """The candidates of a group on one task, measured against each other."""

    group: str
    task: Task
    rows: list[Row]
    missing: list[Missing] = field(default_factory=list)
    cut_short: str | None = None  # a sentence if it was interrupted

    def row(self, method: str, **settings: bool | str) -> Row:
        """Return what was measured of a candidate; raise KeyError if it was not."""
        return {row.candidate: row for row in self.rows}[Candidate(method, **settings)]


@dataclass(frozen=True)
class Machine:
    """Where a record was made."""

    device: str
    processor: str
    cores: int | None
    threads: int
    system: str


@dataclass(frozen=True)
class Record:
    """Studies, with what they were measured on, with which versions, and when."""

    machine: Machine
    versions: dict[str, str]
    date: str
    studies: list[Study]

    def find(self, group: str, model: str, batch_size: int) -> Study | None:
        """Find the study of a group, model and batch size; `None` if there is none."""
        for study in self.studies:
            if (study.group, study.task.model, study.task.batch_size) == (group, model, batch_size):
                return study
        return None


def make(device: torch.device, studies: Iterable[Study]) -> Record:
    """Put studies together with what they were measured on, with what and when."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    processor = found[1].strip() if found else platform.processor() or platform.machine()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor
    machine = Machine(
        name, processor, os.cpu_count(), torch.get_num_threads(), system=platform.system()
    )
    versions = {"python": platform.python_version()}
    for package in ("torch", "numpy", "opacus", "backpack-for-pytorch", "jax"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return Record(machine, versions, datetime.now(UTC).date().isoformat(), list(studies))


def disturbed(studies: Iterable[Study]) -> list[str]:
    """Name what was disturbed while it was measured.

    Of huge pages nothing is said: on a virtual machine, they are slow in some rounds by themselves.
    """
    return [
        f"{study.group}, {study.task.model}, B = {study.task.batch_size}: {row.candidate}"
        for study in studies
        for row in study.rows
        if row.iqr > BOUND * row.median and row.candidate.allocator != HUGE_PAGES
    ]


def write(record: Record, path: Path) -> None:
    """Write a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(record), indent=1) + "\n")


def read_all(folder: Path) -> dict[str, Record]:
    """Read the records of a folder: `{name of the file without .json: record}`."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def read(path: Path) -> Record:
    """Read a record."""
    return json.loads(path.read_text(), object_hook=_fact)


def _fact(content: dict[str, Any]) -> Any:
    """Make the facts that have these fields; versions stay a dictionary."""
    for kind in (Record, Machine, Study, Task, Row, Missing, Candidate):
        if content.keys() == {each.name for each in fields(kind)}:
            return kind(**content)
    return content
