"""Set what runs left in `build/<device>/` side by side in `build/report.html`.

Run from the folder that holds `build/`: `python -m helpers.tooling.report`.
"""

import io
import os
import re
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure
from nbformat import NotebookNode

from helpers import handover
from helpers.tooling import lessons, run

DEVICE = re.compile(r"cpu|mps|cuda(-\d+)?")
LESSON = re.compile(r"(\d\d_\w+?)(\.failed|\.running)?\.ipynb")


def collect(build: Path) -> tuple[dict[str, dict[str, dict[str, Any]]], list[str]]:
    """Read the executed lessons of all devices.

    Args:
        build: The folder with a folder for each device.

    Returns:
        `{device: {lesson: entry}}`, and a sentence for each file that could not be used.
    """
    devices, problems = {}, []
    for folder in sorted(path for path in build.glob("*/") if DEVICE.fullmatch(path.name)):
        entries = {}
        for path in sorted(folder.glob("*.ipynb")):
            named = LESSON.fullmatch(path.name)
            try:
                if not named:
                    raise ValueError("it is not named like a lesson")
                if named[2] == ".running":
                    raise ValueError("it is running, or was stopped before it could be finished")
                entries[named[1]] = _entry(lessons.read(path), failed=named[2] == ".failed")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(f"{folder.name}/{path.name} was left out: {error}")
        if entries:
            devices[folder.name] = entries
    return devices, problems


def _entry(notebook: NotebookNode, *, failed: bool) -> dict[str, Any]:
    """Take out of an executed lesson how it went and what its tables handed over."""
    if run.METADATA not in notebook.metadata:
        raise ValueError("it does not say how it was executed; `make run` executes it anew")
    about = notebook.metadata[run.METADATA]
    tables = []
    for cell in lessons.code_cells(notebook):
        for output in cell.outputs:
            content = output.get("data", {}).get(handover.MIME)
            if content:
                tables.append((cell.id, content))
    return {
        "failed": failed,
        "failure": about["failure"],
        "seconds": float(about["seconds"]),
        "peak": {kind: size / 2**20 for kind, size in about["peak_memory"].items()},
        "parameters": dict(about["parameters"]),
        "machine": dict(about["machine"]),
        "versions": dict(about["versions"]),
        "date": about["date"],
        "comparisons": {
            (cell, row["parameter"]): row
            for cell, table in tables
            if table["kind"] == "comparison"
            for row in table["rows"]
        },
        "timings": {cell: table for cell, table in tables if table["kind"] == "timing"},
    }


def lesson_view(stem: str, devices: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Arrange one lesson by table, with a column for each device."""
    entries = {name: lessons_[stem] for name, lessons_ in devices.items() if stem in lessons_}
    comparisons = []
    for key in dict.fromkeys(key for entry in entries.values() for key in entry["comparisons"]):
        rows = {name: entry["comparisons"].get(key) for name, entry in entries.items()}
        shapes = {tuple(row["shape"]) for row in rows.values() if row}
        comparisons.append({"key": key, "rows": rows, "disagree": len(shapes) > 1})
    plots = []
    for cell in dict.fromkeys(cell for entry in entries.values() for cell in entry["timings"]):
        tables = {n: e["timings"][cell] for n, e in entries.items() if cell in e["timings"]}
        plots.append({"cell": cell, "tables": tables, "svg": _plot(tables)})
    return {"stem": stem, "entries": entries, "comparisons": comparisons, "plots": plots}


def _plot(tables: dict[str, dict[str, Any]]) -> str:
    """Draw times as multiples of the reference, a bar for each device, as SVG for inside HTML."""
    methods = list(dict.fromkeys(row["method"] for t in tables.values() for row in t["rows"]))
    figure = Figure(figsize=(7, 0.8 + 0.3 * len(methods) * max(1, len(tables) * 0.7)))
    axes = figure.subplots()
    height = 0.8 / len(tables)
    for n, (device, table) in enumerate(tables.items()):
        ratios = {row["method"]: row["ratio"] or 0 for row in table["rows"]}
        places = [place + n * height for place in range(len(methods))]
        bars = axes.barh(places, [ratios.get(m, 0) for m in methods], height, label=device)
        axes.bar_label(bars, fmt="%.2f", padding=3)
    middle = (len(tables) - 1) * height / 2
    # A dollar sign would begin a formula.
    names = [method.replace("$", r"\$") for method in methods]
    axes.set_yticks([place + middle for place in range(len(methods))], names)
    axes.invert_yaxis()
    reference = next(iter(tables.values()))["reference"].replace("$", r"\$")
    axes.set_xlabel(f"times {reference}")
    axes.margins(x=0.12)
    if len(tables) > 1:
        axes.legend()
    written = io.StringIO()
    figure.savefig(written, format="svg", bbox_inches="tight", metadata={"Date": None})
    return written.getvalue()


def render(devices: dict[str, dict[str, dict[str, Any]]], problems: list[str]) -> str:
    """Write the page."""
    stems = {stem for entries in devices.values() for stem in entries}
    stems |= {path.stem for path in lessons.FOLDER.glob("[0-9][0-9]_*.ipynb")}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["image"] = _image
    views = [lesson_view(stem, devices) for stem in sorted(stems)]
    template = environment.get_template("report.html.j2")
    return template.render(devices=devices, lessons=views, problems=problems)


def _image(svg: str) -> str:
    """Put SVG into an address, apart from the page and its ids."""
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"


def main() -> int:
    """Run the command line.

    Returns:
        The exit status: 0, or 1 when there is nothing to report.
    """
    devices, problems = collect(run.BUILD)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not devices:
        print(f"{run.BUILD}/ holds no executed lesson: `make run` first", file=sys.stderr)
        return 1
    path = run.BUILD / "report.html"
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(render(devices, problems), encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    print(f"{path}: {', '.join(devices)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
