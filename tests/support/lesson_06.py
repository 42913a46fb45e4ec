"""The entries of lesson 6, run: each below the top of the lesson, and without the others."""

import functools
import linecache
import re
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from nbformat import NotebookNode

from helpers.limits import entries, find
from helpers.limits.lookup import Entry
from helpers.tooling.lesson import files

LESSON = Path(__file__).parents[2] / "notebooks" / "06_limits.ipynb"
NAMES = list(entries())
OTHERWISE_ON_2_11 = {"checkpointing", "compiled-inside", "export-of-gradients"}
"""Entries of which torch 2.11 gives other messages, so that they are not run there."""


def found(message: str) -> list[str]:
    """Return the names of the entries that `find` writes."""
    return re.findall(r"^\| \[([a-z0-9-]+)\]", find(message), re.MULTILINE)


def _sections() -> dict[str, list[NotebookNode]]:
    """Return the code cells of each entry, and at `""` the top: those above section 3."""
    found: dict[str, list[NotebookNode]] = {"": []}
    name: str | None = ""
    for cell in files.read(LESSON).cells:
        if cell.cell_type == "markdown":
            heading = re.match(r"#{2,3} (.+)", cell.source)
            if heading and heading[1] in entries():
                name = heading[1]
                found[name] = []
            elif heading and (len(found) > 1 or heading[1].startswith("3. ")):
                name = None
        elif name is not None:
            found[name].append(cell)
    return found


SECTIONS = _sections()


def told() -> dict[str, Entry]:
    """Read the entries as the text of the lesson tells them."""
    cells = [cell.source for cell in files.read(LESSON).cells if cell.cell_type == "markdown"]
    text = "\n\n".join(cells)
    labels = {"Cause": "cause", "Way out": "fix", "Told apart": "apart"}
    found = {}
    for section in re.findall(r"(?ms)^### ([a-z0-9-]+\n.*?)(?=^#{2,3} |\Z)", text):
        name, *paragraphs = re.split(r"\n\n+", section.strip())
        seen = [re.fullmatch(r"(`+)(.+)\1|((?:wrong|slow): .+)", each) for each in paragraphs]
        parts = [each.removeprefix("**").partition(".** ") for each in paragraphs]
        said = {labels[label]: rest for label, _, rest in parts if label in labels}
        found[name] = Entry(name, tuple(each[2] or each[3] for each in seen if each), **said)
    return found


@dataclass
class Run:
    """What an entry did."""

    names: dict[str, Any]
    raised: list[Exception] = field(default_factory=list)

    @contextmanager
    def expected(self, error: type[Exception], fragment: str) -> Iterator[None]:
        """Stand in for the lesson's tool of this name, and keep the error."""
        with pytest.raises(error) as caught:
            yield
        assert fragment in " ".join(str(caught.value).split())
        self.raised.append(caught.value)

    def case(self, expression: str) -> tuple[Any, ...]:
        """Evaluate `model, loss_fn, data, targets` in the names of the entry."""
        return eval(expression, self.names)


@functools.cache
def top() -> dict[str, Any]:
    """Run the cells above the first entry, with a small batch, and return what they define."""
    module = types.ModuleType("lesson_06_top")
    sys.modules[module.__name__] = module  # where `torch.compile` looks for what is global
    path, generator = [*sys.path], torch.get_rng_state()
    with warnings.catch_warnings():
        for cell in SECTIONS[""]:
            source = re.sub(r"(?m)^batch_size: int = \d+", "batch_size = 8", cell.source)
            exec(compile(source, cell.id, "exec"), vars(module))
    sys.path[:] = path
    torch.set_rng_state(generator)
    return dict(vars(module))


def run(name: str, cells: int | None = None) -> Run:
    """Run an entry, or its first cells, below the top alone; cells that take times are left out."""
    if name in OTHERWISE_ON_2_11 and torch.__version__.startswith("2.11."):
        pytest.skip("torch 2.11 gives another message")
    module = types.ModuleType("lesson_06_" + name.replace("-", "_"))  # one for what is compiled
    sys.modules[module.__name__] = module
    given = top()
    vars(module).update({**given, "__name__": module.__name__})
    done = Run(vars(module))
    done.names["expected"] = done.expected
    # The warnings that a reader would see stand in saved outputs.
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(0)
        for cell in SECTIONS[name][:cells]:
            if "nbval-ignore-output" not in files.tags(cell):
                lines = cell.source.splitlines(keepends=True)
                linecache.cache[cell.id] = len(cell.source), None, lines, cell.id  # for tracebacks
                exec(compile(cell.source, cell.id, "exec"), done.names)
    taken = {key for key in given if done.names[key] is not given[key]}
    assert taken <= {"__name__", "__builtins__", "expected"}, f"it takes names of the top: {taken}"
    return done
