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
        parts = [self.method, "compiled" * self.compiled]
        parts.append("" if self.allocator == DEFAULT else self.allocator)
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class Row:
    """What was measured of a candidate.

    Attributes:
        candidate: Of which.
        median: Seconds of a run, the median of the rounds.
        iqr: The distance of the quartiles, in seconds.
        rounds: How many there were.
        peak: Bytes at the worst moment above those before; `None` where the system does not tell.
        held: Bytes that are still held when the result is gone.
        faults: Page faults of one more run.
        first: Seconds of the first run, compilation included.
    """

    candidate: Candidate
    median: float
    iqr: float
    rounds: int
    peak: int | None
    held: int | None
    faults: int | None
    first: float

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
    cut_short: str | None = None  # a sentence if there were fewer rounds than asked for

    def row(self, method: str, *, compiled: bool = False, allocator: str = DEFAULT) -> Row:
        """Return what was measured of a candidate.

        Raises:
            KeyError: It was not measured, with the reason if there is one.
        """
        wanted = Candidate(method, compiled, allocator)
        for row in self.rows:
            if row.candidate == wanted:
                return row
        reasons = [missing.why for missing in self.missing if missing.candidate == wanted]
        raise KeyError(f"{wanted} was not measured" + "".join(f": {why}" for why in reasons))


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
        for study in self.studies:
            task = study.task
            if (study.group, task.model, task.batch_size) == (group, model, batch_size):
                return study
        return None
