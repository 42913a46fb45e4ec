"""The reference, page 6b, run: each entry below the top of the page, without the others."""

import contextlib
import functools
import io
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

PAGE = Path(__file__).parents[2] / "notebooks" / "06b_reference.ipynb"
NAMES = list(entries())


def found(message: str) -> list[str]:
    """Return the names of the entries that `find` writes."""
    return re.findall(r"^\| \[([a-z0-9-]+)\]", find(message), re.MULTILINE)


def _sections() -> dict[str, list[NotebookNode]]:
    """Return the code cells of each entry, and at `""` those before the entries."""
    found: dict[str, list[NotebookNode]] = {"": []}
    name = ""
    for cell in files.read(PAGE).cells:
        if cell.cell_type == "code":
            found[name].append(cell)
            continue
        heading = re.match(r"### (.+)", cell.source)
        if heading:
            name = heading[1]
            found[name] = []
    return found


SECTIONS = _sections()


def told() -> dict[str, Entry]:
    """Read the entries as the text of the page tells them; a table of fixes as one sentence."""
    cells = [cell.source for cell in files.read(PAGE).cells if cell.cell_type == "markdown"]
    text = "\n\n".join(cells)
    found = {}
    for section in re.findall(r"(?ms)^### ([a-z0-9-]+\n.*?)(?=^#{1,3} |\Z)", text):
        paragraphs = re.split(r"\n\n+", section.strip())
        name = paragraphs.pop(0)
        found[name] = _entry(name, paragraphs)
    return found


def _entry(name: str, paragraphs: list[str]) -> Entry:
    labels = {"Cause": "cause", "Fix": "fix", "How to recognize it": "apart"}
    messages = []
    said = {}
    for paragraph in paragraphs:
        # What is seen: an error, quoted, or a number that is wrong, or what is slow.
        message = re.fullmatch(r"(`+)(.+)\1|((?:wrong|slow): .+)", paragraph)
        if message:
            messages.append(message[2] or message[3])
        label, _, rest = paragraph.removeprefix("**").partition(".** ")
        if label in labels:
            said[labels[label]] = rest
        if paragraph.startswith("|"):
            fixes = []
            for row in paragraph.splitlines()[2:]:
                case, fix = row.strip("|").split("|")
                fixes.append(f"{case}: {fix}")
            said["fix"] = "; ".join(fixes) + "."
    return Entry(name, tuple(messages), **said)


RAISED: list[Exception] = []
"""What was raised or warned of."""
RIGHT: list[bool] = []
"""Whether each compared result was right."""


def attempt(function: Any, *arguments: Any, **options: Any) -> Any:
    """Stand in for the page's function of this name, and keep what is raised or warned of."""
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
    """Run what all entries use, with a small batch, and return what it defines."""
    module = types.ModuleType("lesson_06_top")
    sys.modules[module.__name__] = module  # where `torch.compile` looks for what is global
    path, generator = sys.path.copy(), torch.get_rng_state()
    with warnings.catch_warnings():
        for cell in SECTIONS[""]:
            source = re.sub(r"(?m)^batch_size: int = \d+", "batch_size = 16", cell.source)
            exec(compile(source, cell.id, "exec"), vars(module))
    sys.path[:] = path
    torch.set_rng_state(generator)
    written = module.report

    def report(name: str, got: Any, truth: Any) -> None:
        """Stand in for the page's function, and keep what it says."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            written(name, got, truth)
        RIGHT.append(said.getvalue().endswith(": right\n"))

    module.attempt, module.report = attempt, report
    module.judge = lambda name, is_right: RIGHT.append(bool(is_right))
    return dict(vars(module))


def run(name: str, elsewhere: bool = False) -> tuple[dict[str, Any], list[Exception], list[bool]]:
    """Run an entry below the top alone: its own cells, or those of its second situation.

    Returns what they define, what was raised, and whether each compared result was right.
    """
    own_name = "lesson_06_" + name.replace("-", "_") + "_elsewhere" * elsewhere
    module = types.ModuleType(own_name)  # where what is compiled looks for what is global
    sys.modules[own_name] = module
    given = top()
    vars(module).update(given)
    module.__name__ = own_name
    RAISED.clear()
    RIGHT.clear()
    # The warnings that a reader would see stand in saved outputs.
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(0)
        for cell in SECTIONS[name]:
            if ("-elsewhere" in cell.id) != elsewhere:
                continue
            lines = cell.source.splitlines(keepends=True)
            linecache.cache[cell.id] = len(cell.source), None, lines, cell.id  # for tracebacks
            exec(compile(cell.source, cell.id, "exec"), vars(module))
    for key, value in given.items():
        if key not in ("__name__", "__builtins__"):
            assert getattr(module, key) is value, f"it takes a name of the top: {key}"
    return vars(module), RAISED.copy(), RIGHT.copy()
