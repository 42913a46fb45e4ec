"""Tables that hand their numbers over inside the executed notebook, where `make report` finds them.

What makes a table first makes its rows as data, with all their digits, and then renders them. The
table is a DataFrame, shown as such. Beside text and HTML, an output that shows one holds the data
as JSON, under a MIME type that no viewer knows and therefore none shows.
"""

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

MIME = "application/vnd.per-sample-gradients+json"


@dataclass(frozen=True)
class ComparisonRow:
    """How far one parameter's values are from those expected.

    Attributes:
        shape: With the dimensions of the batch in front.
        error: The largest error; None where there is no finite one.
        instead: Why there is none.
        tolerance: The largest error that counts as equal.
        equal: The verdict.
    """

    shape: tuple[int, ...]
    error: float | None
    instead: str | None
    tolerance: float
    equal: bool


@dataclass(frozen=True)
class TimingRow:
    """How long one candidate took: milliseconds, their spread, and multiples of the reference.

    What was not measured has no numbers, and `missing` says why, in a word.
    """

    median_ms: float | None = None
    spread_ms: float | None = None
    ratio: float | None = None
    missing: str | None = None


Rows = Mapping[Hashable, ComparisonRow | TimingRow]
"""The rows of a table as data, by the labels of its index."""


class Table(pd.DataFrame):
    """A DataFrame that says, when a notebook shows it, from which data it was rendered.

    Rows that are chosen from it, and those of several that `pandas.concat` puts one below the
    other, keep their data.

    Attributes:
        rows: The data; the last name of the index says what the labels name.
        reference: What times are multiples of; None for a comparison.
    """

    _metadata = ("rows", "reference")  # pandas hands these on to what it makes of a table
    rows: Rows = MappingProxyType({})
    reference: str | None = None

    @classmethod
    def of(cls, rows: Rows, rendered: pd.DataFrame, reference: str | None = None) -> "Table":
        """Make a table of data and of what was rendered from it."""
        table = cls(rendered)
        table.rows, table.reference = rows, reference
        return table

    @property
    def _constructor(self) -> type["Table"]:
        return Table

    def __finalize__(self, other: Any, method: str | None = None, **options: Any) -> "Table":
        """Let a table that pandas has made keep the data of those that it was made of."""
        super().__finalize__(other, method=method, **options)
        joined = [each for each in getattr(other, "input_objs", ()) if isinstance(each, Table)]
        rows = [each.rows.get(label) for each in joined for label in each.index]
        alike = len({each.reference for each in joined}) == 1 and self.index.is_unique
        if alike and len(rows) == len(self.index):
            self.rows = {label: row for label, row in zip(self.index, rows, strict=True) if row}
            self.reference = joined[0].reference
        return self

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Add the data to what IPython shows; HTML and text come from pandas as ever."""
        rows = []
        for label in filter(self.rows.__contains__, self.index):
            words = ", ".join(map(str, label)) if isinstance(label, tuple) else str(label)
            rows.append({self.index.names[-1]: words, **asdict(self.rows[label])})
        kind = {"kind": "timing", "reference": self.reference}
        kind = kind if self.reference is not None else {"kind": "comparison"}
        return {MIME: {**kind, "rows": rows}} if rows else {}


@dataclass(frozen=True)
class Time:
    """How long something took, in seconds, or why that is not known.

    Attributes:
        median: The median of all rounds.
        spread: The distance of the quartiles; `None` for a single round, which has none.
        missing: Why it was not measured, in a word.
        why: The same in a sentence, for those who see the table.
    """

    median: float | None = None
    spread: float | None = None
    missing: str | None = None
    why: str | None = None


def timings(times: Mapping[str, Time], reference: str) -> Table:
    """Set out times, their spread, and each as a multiple of one of them.

    Args:
        times: `{name: time}`.
        reference: The name of the one that the others are multiples of.

    Returns:
        A row for each name: median and spread in milliseconds, and how many times the reference
        it takes: 2.0 takes twice as long, 0.5 half as long. If something was not measured, one
        more column says why.

    Raises:
        ValueError: Nothing that was measured has the reference's name.
    """
    measured = {name: time for name, time in times.items() if time.median is not None}
    if reference not in measured:
        raise ValueError(f"reference must be one of {', '.join(measured)}, got {reference!r}")
    unit = measured[reference].median
    rows = {
        name: TimingRow(
            time.median * 1e3,
            None if time.spread is None else time.spread * 1e3,
            time.median / unit,
        )
        for name, time in measured.items()
    }
    missing = {name: time for name, time in times.items() if time.median is None}
    rows |= {name: TimingRow(missing=time.missing) for name, time in missing.items()}
    rendered = pd.DataFrame(
        {
            "median (ms)": {name: row.median_ms for name, row in rows.items()},
            "spread (ms)": {name: row.spread_ms for name, row in rows.items()},
            f"times {reference}": {name: row.ratio for name, row in rows.items()},
        },
        dtype=float,
    ).round(2)
    if missing:
        said = {name: time.why or time.missing for name, time in missing.items()}
        rendered["not measured"] = pd.Series(said).reindex(rendered.index).fillna("")
    return Table.of(rows, rendered.rename_axis("method"), reference)
