"""What a measurement is about, and what it found: plain facts, which a record keeps as JSON."""

from dataclasses import dataclass, field

DEFAULT, KEEP_FREED, HUGE_PAGES = "default", "freed memory kept", "huge pages"
"""The allocators: glibc as it comes, with `helpers.memory.keep_freed`, with pages of 2 MiB."""
REFERENCE = "batch gradient"
"""The method that the others are multiples of."""


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

    def find(self, *wanted: str | int) -> Study | None:
        """Find the first study of a group, model and batch size; `None` if there is none."""
        known = ((each.group, each.task.model, each.task.batch_size) for each in self.studies)
        return next((self.studies[i] for i, facts in enumerate(known) if facts == wanted), None)
