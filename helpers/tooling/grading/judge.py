"""Verdicts on an answer: by the check of the lesson, then by a hidden test."""

import builtins
import importlib
import linecache
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from types import ModuleType
from typing import Any, NamedTuple

from helpers.tooling.grading import syntax

PRINTED = 10_000
"""Characters of what an answer and its checks print that are kept."""
FOREIGN = {"torch", "torch.func", "torch.autograd", "torch.nn.functional", "torch.linalg"}
"""Modules in which nothing may be changed, besides the helpers and what the lesson imports."""
WRAPPED = "torch.manual_seed"
"""Seen changed by right answers of lesson 1."""
INNER = {
    *("__globals__", "__closure__", "__code__", "__builtins__", "__subclasses__", "cell_contents"),
    *("f_back", "f_globals", "f_locals", "tb_frame", "gi_frame", "cr_frame", "_getframe"),
    *("__torch_function__", "__torch_dispatch__"),
}
"""Names that lead from a function to what the check knows, or change the torch that it uses."""


LIBRARY = re.compile(r"\btorch\.library\b|\btorch import .*\blibrary\b")
"""What can replace the kernels of torch."""


class Verdicts(NamedTuple):
    """What a check finds as `exercises`: functions that no code of an answer can replace."""

    check: Callable
    expect: Callable
    expect_shape: Callable
    require: Callable
    STILL_TO_DO: str


def run(source: str, namespace: dict[str, Any], name: str) -> None:
    """Run a cell under a name by which its lines are found, but those of a hidden test."""
    if not name.startswith("<hidden"):
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


def judge(
    lesson: dict[str, Any], number: int, name: str, source: str, check: str, hidden: str
) -> dict[str, str]:
    """Judge an answer; the process that does so ends after it.

    Args:
        lesson: The names of the lesson before the exercise.
        number: The exercise.
        name: What the answer defines.
        source: The answer. It runs among copies of these names, so that it replaces none of them.
        check: The check of the lesson.
        hidden: The hidden test, a cell of the same form; an empty one is none.

    Returns:
        `{"verdict": ..., "hidden": ..., "printed": ...}`, as `helpers.exercises` words them.
    """
    from helpers.exercises.snapshots import Snapshot

    inner = sorted(INNER & syntax.words(source)) + LIBRARY.findall(source)
    if inner:
        return {"verdict": f"refused: it uses {', '.join(inner)}, which no answer needs"}
    mine = ModuleType("__main__")
    vars(mine).update(lesson)
    vars(mine).pop(name, None)
    sys.modules["__main__"] = mine
    verdicts, said = _verdicts(vars(mine))
    data = Snapshot({each: value for each, value in lesson.items() if not each.startswith("__")})
    imported = {each.__name__ for each in lesson.values() if isinstance(each, ModuleType)}
    attributes = list(_attributes(FOREIGN | (imported & sys.stdlib_module_names)))
    printed, found = StringIO(), {"verdict": "", "hidden": ""}
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            run(source, vars(mine), "<your cell>")
        except BaseException as error:
            line = getattr(error, "text", None) or ""
            first_line = (str(error) or "no message").splitlines()[0]
            found["verdict"] = (
                f"your cell raised {type(error).__name__}: {first_line} {line}".strip()
            )
        data.restore()
        changed = _put_back(attributes)
        if not found["verdict"] and name not in vars(mine):
            found["verdict"] = f"no answer: its cell defines no `{name}`"
        if not (found["verdict"] or changed):
            # What the check computes is in no names that functions of the lesson lead to.
            checked = lesson | {name: vars(mine)[name], "exercises": verdicts}
            checked["__builtins__"] = dict(vars(builtins))
            for kind, test in (("verdict", check), ("hidden", hidden)):
                said.clear()
                if test:
                    run(test, checked, f"<{kind} {number} of the lesson>")
                    marks = [line for line in said if line.startswith(f"Exercise {number}: ")]
                    found[kind] = (marks or [": the test said nothing"])[-1].partition(": ")[2]
            changed = _put_back(attributes)
    if changed:
        found = {"verdict": f"refused: it changed {', '.join(changed[:3])}", "hidden": ""}
    return found | {"printed": printed.getvalue()[:PRINTED]}


def _verdicts(mine: dict[str, Any]) -> tuple[Verdicts, list[str]]:
    """Import the checks once more, for the check alone, with a list of what they print.

    Code of the answer finds its own names, `mine`, where it would find the lesson's.
    """
    import helpers

    public = {
        each: module
        for each, module in sys.modules.items()
        if each == "helpers.compare" or each.startswith("helpers.exercises")
    }
    for each in public:
        del sys.modules[each]
    own = importlib.import_module("helpers.exercises.verdicts")
    sys.modules.update(public)
    for each in ("compare", "exercises"):
        if f"helpers.{each}" in public:
            setattr(helpers, each, public[f"helpers.{each}"])
    said: list[str] = []
    alone = own.alone
    own.alone = lambda answer, lesson, sees: alone(answer, mine, sees)
    own.print = lambda line: (said.append(line), print(line))
    return Verdicts(*(getattr(own, each) for each in Verdicts._fields)), said


def _attributes(foreign: Collection[str]) -> Iterator[tuple[str, Any, str, Any, Any]]:
    """List what no answer may replace: whose attribute it is, its name, value, and content."""
    import torch

    holders = {"torch.Tensor": torch.Tensor, "builtins": builtins}
    for name, module in sys.modules.items():
        if name in foreign or name.partition(".")[0] == "helpers":
            holders[name] = module
            holders |= {
                f"{name}.{each}": value
                for each, value in vars(module).items()
                if isinstance(value, type) and value.__module__.startswith("helpers.")
            }
    for name, holder in holders.items():
        for each, value in list(vars(holder).items()):
            content = dict(value) if isinstance(value, dict) else None
            if (callable(value) or each.isupper()) and f"{name}.{each}" != WRAPPED:
                yield name, holder, each, value, content


def _put_back(attributes: list[tuple[str, Any, str, Any, Any]]) -> list[str]:
    """Make all these what they were; return the names of what was anything else."""
    changed = []
    for name, holder, each, value, content in attributes:
        if vars(holder).get(each) is not value:
            changed.append(f"{name}.{each}")
            setattr(holder, each, value)
        if content is not None and value != content:
            changed.append(f"{name}.{each}")
            value.clear()
            value.update(content)
    return changed
