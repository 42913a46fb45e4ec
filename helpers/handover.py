"""Tables that hand their numbers over inside the executed notebook, where `make report` finds them.

They are DataFrames, shown as such. Beside text and HTML, an output that shows one holds its content
as JSON, under a MIME type that no viewer knows and therefore none shows.
"""

from math import isfinite
from typing import Any

import pandas as pd

MIME = "application/vnd.per-sample-gradients+json"
ERRORS = "largest errors"
"""The attribute of a comparison with `{parameter: (largest error, tolerance)}` as numbers."""


class Table(pd.DataFrame):
    """A DataFrame that says, when a notebook shows it, what it holds."""

    @property
    def _constructor(self) -> type["Table"]:
        return Table  # what pandas makes of one, by `concat` for example, is one as well

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Add the content to what IPython shows; HTML and text come from pandas as ever."""
        content = _comparison(self) or _timing(self)
        return {MIME: content} if content else {}


def _comparison(table: pd.DataFrame) -> dict[str, Any]:
    errors = table.attrs.get(ERRORS, {})
    if not {"per-sample shape", "equal"} <= set(table.columns):
        return {}
    rows = []
    for name, row in table.iterrows():
        error, tolerance = errors.get(name, (None, None))
        finite = error is not None and isfinite(error)
        words = str(row.get("largest error", "none"))
        rows.append(
            {
                "parameter": str(name),
                "shape": list(row["per-sample shape"]),
                "error": error if finite else None,
                "instead": None if finite else ("not finite" if words == "inf" else words),
                "tolerance": tolerance,
                "equal": bool(row["equal"]),
            }
        )
    return {"kind": "comparison", "rows": rows}


def _timing(table: pd.DataFrame) -> dict[str, Any]:
    ratios = [name for name in table.columns if str(name).startswith("times ")]
    if "median (ms)" not in table.columns or len(ratios) != 1:
        return {}
    rows = []
    for name, row in table.iterrows():
        numbers = (row["median (ms)"], row["spread (ms)"], row[ratios[0]])
        median, spread, ratio = (
            float(n) if n is not None and isfinite(n) else None for n in numbers
        )
        label = ", ".join(map(str, name)) if isinstance(name, tuple) else str(name)
        rows.append(
            {
                "method": label,
                "median_ms": median,
                "spread_ms": spread,
                "ratio": ratio,
                "missing": (row.get("not measured") or "failed") if ratio is None else None,
            }
        )
    return {"kind": "timing", "reference": ratios[0].removeprefix("times "), "rows": rows}
