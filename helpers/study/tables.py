"""A study set out in tables: times, and memory."""

import pandas as pd

from helpers import benchmark
from helpers.study.facts import REFERENCE, Study


def times(study: Study) -> pd.DataFrame:
    """Set out times, their spread, multiples of the reference, and what was not measured."""
    found = {str(row.candidate): (row.median, row.spread) for row in study.rows}
    missing = {str(m.candidate): "absent" if m.absent else "failed" for m in study.missing}
    return benchmark.multiples(found, missing, REFERENCE)


def memory(study: Study) -> pd.DataFrame:
    """Set out memory: the peak, what is held after, in MiB, and the page faults of a run."""
    rows = {
        str(row.candidate): {
            "peak (MiB)": _number(row.peak, 2**20),
            "held after (MiB)": _number(row.held, 2**20),
            "page faults": _number(row.faults),
        }
        for row in study.rows
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def _number(number: int | None, unit: int = 1) -> str:
    return "" if number is None else f"{number / unit:,.0f}"
