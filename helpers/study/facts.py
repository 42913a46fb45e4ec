"""What a measurement is about, and what it found: plain facts, which a record keeps as JSON."""

from dataclasses import dataclass

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
    faults: int | None  # page faults of one more run
    first: float  # the first run, compilation included

    @property
    def spread(self) -> float | None:
        """The distance of the quartiles; `None` for a single round, which has none."""
        return self.iqr if self.rounds > 1 else None


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
    rows: tuple[Row, ...]
    missing: tuple[Missing, ...] = ()
    cut_short: str | None = None  # a sentence if it was interrupted

    def row(self, method: str, *, compiled: bool = False, allocator: str = DEFAULT) -> Row:
        """Return what was measured of a candidate.

        Raises:
            KeyError: It was not measured, with the reason if there is one.
        """
        wanted = Candidate(method, compiled, allocator)
        for row in self.rows:
            if row.candidate == wanted:
                return row
        reasons = [f": {missing.why}" for missing in self.missing if missing.candidate == wanted]
        raise KeyError(f"{wanted} was not measured{''.join(reasons)}")


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
    studies: tuple[Study, ...]

    def find(self, group: str, model: str, batch_size: int) -> Study | None:
        """Find the first study of a group, model and batch size; `None` if there is none."""
        wanted = group, model, batch_size
        facts = ((s, (s.group, s.task.model, s.task.batch_size)) for s in self.studies)
        return next((study for study, found in facts if found == wanted), None)
