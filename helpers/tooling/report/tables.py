"""What an executed lesson says of its run and hands over in tables: read, and checked."""

import json
import warnings
from math import isfinite
from pathlib import Path
from typing import Any

import jsonschema

from helpers import handover
from helpers.tooling import run
from helpers.tooling.lesson import files


def _object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(fields), "properties": fields}


def _rows(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": _object(**fields)}


TEXT, MAYBE_TEXT = {"type": "string"}, {"type": ["string", "null"]}
SIZE = {"type": "number", "minimum": 0, "maximum": 1e18}
NUMBER = {"type": ["number", "null"], "minimum": 0, "maximum": 1e100}
RUN = _object(
    failure=MAYBE_TEXT,
    seconds={"type": "number", "minimum": 1e-6, "maximum": 1e9},
    peak_memory={"type": "object", "additionalProperties": SIZE},
    asked={"type": "array", "items": TEXT},
    date=TEXT,
    machine={"type": "object"},
    versions={"type": "object"},
    parameters={"type": "object"},
)
TABLES = {
    "comparison": _object(
        rows=_rows(
            parameter=TEXT,
            shape={"type": "array", "items": {"type": "integer"}},
            error=NUMBER,
            instead=MAYBE_TEXT,
            tolerance=NUMBER,
            equal={"type": "boolean"},
        )
    ),
    "timing": _object(
        reference=TEXT,
        rows=_rows(
            method=TEXT, median_ms=NUMBER, spread_ms=NUMBER, ratio=NUMBER, missing=MAYBE_TEXT
        ),
    ),
}
"""What tables look like, by their kind; see `helpers.handover`."""


def read(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read an executed lesson.

    Args:
        path: The notebook.

    Returns:
        How it went, with its tables; and a sentence for each table that could not be used.

    Raises:
        ValueError: The file is no notebook, or does not say how it was executed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # nbformat's, of ids that it makes up
        notebook = files.read(path)
    if run.METADATA not in notebook.metadata:
        raise ValueError("it does not say how it was executed; `make run` executes it anew")
    about = notebook.metadata[run.METADATA]
    _check(about, RUN, "what it says of its run (`make run` executes it anew)")
    if not all(map(isfinite, (about["seconds"], *about["peak_memory"].values()))):
        raise ValueError("what it says of its run is malformed: a number is not finite")
    entry = {
        "failure": about["failure"],
        "seconds": about["seconds"],
        "asked": about["asked"],
        "peak": {kind: size / 2**20 for kind, size in about["peak_memory"].items()},
        "facts": {
            "run": {"date": about["date"]},
            "machine": dict(about["machine"]),
            "versions": dict(about["versions"]),
            "parameters": {k: v for k, v in about["parameters"].items() if k != "device"},
        },
        "comparison": {},
        "timing": {},
    }
    problems = []
    # As they stand in the file: the same whenever it is read.
    identities = [cell.get("id") for cell in json.loads(path.read_text("utf-8"))["cells"]]
    for number, (cell, identity) in enumerate(zip(notebook.cells, identities, strict=True), 1):
        for output in cell.get("outputs", []):
            if handover.MIME not in output.get("data", {}):
                continue
            name = identity or f"number {number}"
            try:
                table = check_table(output["data"][handover.MIME])
            except ValueError as error:
                problems.append(f"a table of cell {name} was left out: {error}")
                continue
            same = sum(each.partition(", table ")[0] == name for each in entry[table["kind"]])
            entry[table["kind"]][f"{name}, table {same + 1}" if same else name] = table
    return entry, problems


def check_table(content: Any) -> dict[str, Any]:
    """Check a table, and give each time without a usable ratio a note that says why.

    Raises:
        ValueError: It is malformed, with the place and the reason.
    """
    _check(content, _object(kind={"enum": list(TABLES)}), "it")
    kind = content["kind"]
    rows = content.get("rows")
    for row in rows if isinstance(rows, list) else []:
        for name, value in row.items() if isinstance(row, dict) else []:
            if isinstance(value, float) and not isfinite(value):
                row[name] = None
                if name == "error":
                    row["instead"] = "not finite"
    _check(content, TABLES[kind], "it")
    names = [row["parameter" if kind == "comparison" else "method"] for row in rows]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"it is malformed: two rows are named {twice[0]!r}")
    for row in rows:
        if kind == "timing":
            row["note"] = row["missing"]
            if row["ratio"] is None:
                row["note"] = row["note"] or "not measured"
            elif row["ratio"] < 0.005:
                row["note"] = "below 0.01"
    return content


def _check(content: Any, schema: dict[str, Any], what: str) -> None:
    errors = jsonschema.Draft202012Validator(schema).iter_errors(content)
    error = jsonschema.exceptions.best_match(errors)
    if error is not None:
        where = error.json_path.removeprefix("$").removeprefix(".")
        raise ValueError(
            f"{what} is malformed: {f'{where}: ' if where else ''}{error.message:.120}"
        )
