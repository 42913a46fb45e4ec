"""A study set out in tables: times, and memory."""

import pandas as pd

from helpers import benchmark
from helpers.study.facts import REFERENCE, Study


def times(study: Study) -> pd.DataFrame:
    """Set out times, their spread, multiples of the reference, and what was not measured."""
    found = {
        str(row.candidate): (row.median, row.iqr if row.rounds > 1 else None) for row in study.rows
    }
    missing = {str(m.candidate): "absent" if m.absent else "failed" for m in study.missing}
    return benchmark.multiples(found, missing, REFERENCE)


def memory(study: Study) -> pd.DataFrame:
    """Set out memory: the peak, what is held after, in MiB, and the page faults of a run."""
    columns = {"peak (MiB)": ("peak", 2**20), "held after (MiB)": ("held", 2**20)}
    columns |= {"page faults": ("faults", 1)}
    rows = {str(row.candidate): vars(row) for row in study.rows}
    cells = {
        title: ["" if row[name] is None else f"{row[name] / unit:,.0f}" for row in rows.values()]
        for title, (name, unit) in columns.items()
    }
    return pd.DataFrame(cells, index=list(rows)).rename_axis("method")
