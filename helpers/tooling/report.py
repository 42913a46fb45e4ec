"""One page that sets the runs in `build/<device>/` side by side: `build/report.html`.

Run from the folder that holds `build/`: `python -m helpers.tooling.report`. A folder of another
machine, copied to `build/<device>@<name>/`, stands beside them.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from nbformat import NotebookNode

from helpers.tooling import run
from helpers.tooling.lesson import files

PAGE = run.BUILD / "report.html"
DEVICE = re.compile(r"(cpu|mps|cuda(-\d+)?)(@[\w.-]+)?")
"""Folders of devices; those of another machine are named after it, such as `cuda-0@cluster`."""
HEAD = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Devices side by side</title>
<style>
:root { color-scheme: light dark; --line: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
.wide, .devices > * { overflow-x: auto; }
.devices { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
.devices > * { border: 1px solid var(--line); padding: .5rem; }
table { border-collapse: collapse; font-size: .875rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: left;
  vertical-align: top; max-width: 24rem; overflow-wrap: anywhere; }
.bad { color: light-dark(#b00020, #ff8a80); font-weight: 600; }
.good { color: light-dark(#1b6e2b, #8bd49a); }
summary { margin-top: 1rem; }
img { max-width: 100%; background: #fff; }
</style>
<h1>Devices side by side</h1>
"""

Results = Mapping[str, NotebookNode]
"""The lessons that a device has executed, by name."""


def collect(build: Path = run.BUILD) -> dict[str, Results]:
    """Read the executed lessons of all devices, by the names of their folders."""
    devices = {}
    for folder in sorted(path for path in build.glob("*/") if DEVICE.fullmatch(path.name)):
        paths = folder.glob("[0-9][0-9]_*.ipynb")
        devices[folder.name] = {path.name.partition(".")[0]: files.read(path) for path in paths}
    return {name: results for name, results in devices.items() if results}


def render(devices: Mapping[str, Results]) -> str:
    """Write the page: the runs, on what they ran, and of each lesson the cells that differ."""
    rows, sections = [], []
    for stem in sorted({stem for results in devices.values() for stem in results}):
        notebooks = {name: each[stem] for name, each in devices.items() if stem in each}
        name = stem
        if len(notebooks) > 1:
            sections.append(_lesson(stem, notebooks))
            name = f'<a href="#{stem}">{stem}</a>'
        went = (_state(notebooks[each]) if each in notebooks else "not run" for each in devices)
        rows.append((name, *went))
    facts = {device: _facts(each.values()) for device, each in devices.items()}
    said = [
        (escape(fact), *(escape(facts[name].get(fact, "")) for name in devices))
        for fact in dict.fromkeys(fact for each in facts.values() for fact in each)
    ]
    machines = "<h2>Parameters, machines, versions</h2>"
    tables = _table(("lesson", *devices), rows), machines, _table(("", *devices), said)
    return "\n".join([HEAD, *tables, *sections])


def differing(notebooks: Mapping[str, NotebookNode]) -> list[dict[str, NotebookNode]]:
    """List the cells of a lesson whose text differs between devices, each by device."""
    cells: dict[str, dict[str, NotebookNode]] = {}
    for device, notebook in notebooks.items():
        for cell in files.code_cells(notebook):
            if cell.execution_count is not None and "parameters" not in files.tags(cell):
                cells.setdefault(cell.id, {})[device] = cell
    return [
        each
        for each in cells.values()
        if len({"\n".join(map(_plain, _said(cell))) for cell in each.values()}) > 1
    ]


def _state(notebook: NotebookNode) -> str:
    """Return how a lesson went, as HTML: result, error, run time, peak memory."""
    about = notebook.metadata[run.METADATA]
    lines = ['<span class="good">passed</span>']
    if about.failure is not None:
        lines = [f'<span class="bad">failed</span>: {escape(about.failure)}']
    lines.append(f"{about.seconds:.1f} s")
    lines += [
        f"{size / 2**20:,.0f} MiB on the {'GPU' if kind == 'cuda' else 'host'}"
        for kind, size in about.peak_memory.items()
    ]
    return "<br>".join(lines)


def _facts(executed: Iterable[NotebookNode]) -> dict[str, str]:
    """Return on what and with what lessons ran; where lessons differ, all values."""
    facts: dict[str, dict[str, None]] = {}
    for notebook in executed:
        about = notebook.metadata[run.METADATA]
        parts = {**about.parameters, "date": about.date, **about.machine, **about.versions}
        for name, value in parts.items():
            facts.setdefault(name, {})[str(value)] = None
    return {name: ", ".join(values) for name, values in facts.items()}


def _lesson(stem: str, notebooks: Mapping[str, NotebookNode]) -> str:
    """Write the section of a lesson that several devices have executed."""
    cells = differing(notebooks)
    text = [f'<h2 id="{stem}">{stem}</h2>', f"<p>Cells whose outputs differ: {len(cells)}.</p>"]
    for cell in cells:
        device, first = next(iter(cell.items()))
        place, source = files.place(notebooks[device], first), escape(first.source)
        text.append(f"<details><summary>{place}</summary><pre>{source}</pre></details>")
        shown = (f"<div><b>{name}</b>{_outputs(each)}</div>" for name, each in cell.items())
        text.append(f'<div class="devices">{"".join(shown)}</div>')
    return "\n".join(text)


def _said(cell: NotebookNode) -> list[NotebookNode]:
    """List the outputs of a cell but for progress."""
    return [each for each in cell.outputs if each.get("name") != "stderr"]


def _plain(output: NotebookNode) -> str:
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}"
    return output.get("text", "") or output.get("data", {}).get("text/plain", "")


def _outputs(cell: NotebookNode) -> str:
    """Write the outputs of a cell as HTML."""
    shown = []
    for output in _said(cell):
        data = output.get("data", {})
        if "text/html" in data:
            shown.append(data["text/html"])
        elif "image/png" in data:
            alt = escape(cell.metadata.get("alt", "A figure."))
            shown.append(f'<img src="data:image/png;base64,{data["image/png"]}" alt="{alt}">')
        else:
            shown.append(f"<pre>{escape(_plain(output))}</pre>")
    return "".join(shown)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table of cells that are HTML."""
    lines = ["".join(f"<th>{head}</th>" for head in heads)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    text = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>\n{text}\n</table></div>'


if __name__ == "__main__":
    devices = collect()
    if not devices:
        sys.exit(f"{run.BUILD}/ holds no executed lesson: `make run` first")
    PAGE.write_text(render(devices), encoding="utf-8")
    print(f"{PAGE}: {', '.join(devices)}")
