"""The reference of lesson 6, run: each entry below the top of the lesson, without the others."""

import functools
import linecache
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch
from nbformat import NotebookNode

from helpers.limits import entries, find
from helpers.limits.lookup import Entry
from helpers.tooling.lesson import files

LESSON = Path(__file__).parents[2] / "notebooks" / "06_limits.ipynb"
NAMES = list(entries())


def found(message: str) -> list[str]:
    """Return the names of the entries that `find` writes."""
    return re.findall(r"^\| \[([a-z0-9-]+)\]", find(message), re.MULTILINE)


def _sections() -> dict[str, list[NotebookNode]]:
    """Return the code cells of each entry, and at `""` section 1 and those before the entries."""
    found: dict[str, list[NotebookNode]] = {"": []}
    name: str | None = ""
    for cell in files.read(LESSON).cells:
        heading = re.match(r"(#{1,3}) (.+)", cell.source) if cell.cell_type == "markdown" else None
        if heading and heading[2] in entries():
            name = heading[2]
            found[name] = []
        elif heading:
            name = "" if heading[2].startswith(("Reference", "1. ", "6. ")) else None
        elif name is not None and cell.cell_type == "code":
            found[name].append(cell)
    return found


SECTIONS = _sections()


def told() -> dict[str, Entry]:
    """Read the entries as the text of the lesson tells them; a table of fixes as one sentence."""
    cells = [cell.source for cell in files.read(LESSON).cells if cell.cell_type == "markdown"]
    labels = {"Cause": "cause", "Fix": "fix", "How to recognize it": "apart"}
    found = {}
    for section in re.findall(r"(?ms)^### ([a-z0-9-]+\n.*?)(?=^#{1,3} |\Z)", "\n\n".join(cells)):
        name, *paragraphs = re.split(r"\n\n+", section.strip())
        seen = [re.fullmatch(r"(`+)(.+)\1|((?:wrong|slow): .+)", each) for each in paragraphs]
        parts = [each.removeprefix("**").partition(".** ") for each in paragraphs]
        said = {labels[label]: rest for label, _, rest in parts if label in labels}
        for table in (each for each in paragraphs if each.startswith("|")):
            rows = [row.strip("|").split("|") for row in table.splitlines()[2:]]
            said["fix"] = "; ".join(f"{case}: {fix}" for case, fix in rows) + "."
        found[name] = Entry(name, tuple(each[2] or each[3] for each in seen if each), **said)
    return found


RAISED: list[Exception] = []


def attempt(function: Any, *arguments: Any, **options: Any) -> Any:
    """Stand in for the lesson's function of this name, and keep what is raised or warned of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            return function(*arguments, **options)
        except Exception as error:
            RAISED.append(error)
        finally:
            RAISED.extend(each.message for each in heard if "torch.jit" not in str(each.message))


@functools.cache
def top() -> dict[str, Any]:
    """Run section 1 and the cell of tools, with a small batch, and return what they define."""
    module = types.ModuleType("lesson_06_top")
    sys.modules[module.__name__] = module  # where `torch.compile` looks for what is global
    path, generator = [*sys.path], torch.get_rng_state()
    with warnings.catch_warnings():
        for cell in SECTIONS[""]:
            source = re.sub(r"(?m)^batch_size: int = \d+", "batch_size = 16", cell.source)
            exec(compile(source, cell.id, "exec"), vars(module))
    sys.path[:] = path
    torch.set_rng_state(generator)
    module.attempt = attempt
    return dict(vars(module))


def run(name: str) -> tuple[dict[str, Any], list[Exception]]:
    """Run the cells of an entry, below the top alone: what they define, and what was raised."""
    module = types.ModuleType("lesson_06_" + name.replace("-", "_"))  # one for what is compiled
    sys.modules[module.__name__] = module
    given = top()
    vars(module).update({**given, "__name__": module.__name__})
    RAISED.clear()
    # The warnings that a reader would see stand in saved outputs.
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(0)
        for cell in SECTIONS[name]:
            lines = cell.source.splitlines(keepends=True)
            linecache.cache[cell.id] = len(cell.source), None, lines, cell.id  # for tracebacks
            exec(compile(cell.source, cell.id, "exec"), vars(module))
    taken = {key for key in given if getattr(module, key) is not given[key]}
    assert taken <= {"__name__", "__builtins__"}, f"it takes names of the top: {taken}"
    return vars(module), [*RAISED]
