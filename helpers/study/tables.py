"""A study set out in tables: times, and memory."""

import pandas as pd

from helpers import benchmark
from helpers.study.records import REFERENCE, Study


def times(study: Study) -> pd.DataFrame:
    """Set out times, their spread, multiples of the reference, and what was not measured."""
    measured = benchmark.Times({str(row.candidate): row for row in study.rows})
    measured.failed = {
        str(each.candidate): "absent" if each.absent else "failed" for each in study.missing
    }
    return benchmark.table(measured, reference=REFERENCE)


def memory(study: Study) -> pd.DataFrame:
    """Set out memory: the peak, what is held after, in MiB, and the page faults of a run."""
    columns = ("peak (MiB)", "peak", 2**20), ("held after (MiB)", "held", 2**20)
    cells = {
        title: ["" if (v := vars(row)[name]) is None else f"{v / unit:,.0f}" for row in study.rows]
        for title, name, unit in (*columns, ("page faults", "faults", 1))
    }
    names = [str(row.candidate) for row in study.rows]
    return pd.DataFrame(cells, index=names).rename_axis("method")
