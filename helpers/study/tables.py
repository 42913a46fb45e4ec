"""A study set out in tables: times, memory, and what they leave out."""

import pandas as pd

from helpers import benchmark
from helpers.study.facts import REFERENCE, Study


def times(study: Study, *, reference: str = REFERENCE) -> pd.DataFrame:
    """Set out times, their spread, multiples of the reference, and what was not measured.

    Args:
        study: What `helpers.study.comparison.run` returned, or a record holds.
        reference: The method, as it comes, that the others are multiples of.

    Raises:
        ValueError: It was not measured.
    """
    found = {str(row.candidate): (row.median, row.spread) for row in study.rows}
    missing = {str(m.candidate): "absent" if m.absent else "failed" for m in study.missing}
    return benchmark.multiples(found, missing, reference)


def memory(study: Study) -> pd.DataFrame:
    """Set out memory: the peak, what is held after, in MiB, and the page faults of a run."""
    rows = {
        str(row.candidate): {
            "peak (MiB)": _mebibytes(row.peak),
            "held after (MiB)": _mebibytes(row.held),
            "page faults": "" if row.faults is None else f"{row.faults:,}",
        }
        for row in study.rows
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def remarks(study: Study) -> list[str]:
    """List why candidates were not measured, and why rounds are missing."""
    said = [f"{missing.candidate}: {missing.why}" for missing in study.missing]
    return said + ([study.cut_short] if study.cut_short else [])


def _mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:,.0f}"
