"""The parameters of a lesson: what its parameters cell declares, and values checked against it."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from nbformat import NotebookNode

from helpers import data, devices
from helpers.tooling.lesson import files

REQUIRED = ("device", "dataset", "batch_size", "seed")
TYPES = {"str": (str, "text"), "int": (int, "a whole number")}


def parse(assignments: Sequence[str]) -> dict[str, str]:
    """Split `["batch_size=32", "dataset=random"]` into names and values.

    Raises:
        ValueError: One of them is not `name=value`, or a name comes twice.
    """
    values: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise ValueError(f"a parameter is given as name=value, got {assignment!r}")
        if name in values:
            raise ValueError(f"parameter {name!r} is given twice")
        values[name] = value
    return values


def declared(cell: NotebookNode) -> dict[str, int | str]:
    """Read the parameters cell: the names it declares, with their defaults.

    Args:
        cell: Lines of the form `batch_size: int = 64  # B, the number of samples`.

    Raises:
        ValueError: A line has another form, a default is not of its type, or a name that every
            lesson has is missing.
    """
    form = "the form `name: type = value  # meaning`, type int or str"
    lines = cell.source.splitlines()
    found = {}
    try:
        statements = ast.parse(cell.source).body
    except SyntaxError as error:
        raise ValueError(f"the parameters cell is not Python: {error}") from error
    for statement in statements:
        match statement:
            case ast.AnnAssign(
                target=ast.Name(id=name),
                annotation=ast.Name(id="int" | "str" as kind),
                value=ast.Constant(value=value),
            ) if "#" in lines[statement.end_lineno - 1][statement.end_col_offset :]:
                if type(value) is not TYPES[kind][0]:
                    raise ValueError(f"parameter {name!r} must be {TYPES[kind][1]}, has {value!r}")
                found[name] = value
            case _:
                raise ValueError(f"line {lines[statement.lineno - 1]!r} has not {form}")
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        raise ValueError(f"the parameters cell lacks {', '.join(missing)}")
    return found


def defaults(lesson: Path) -> dict[str, int | str]:
    """Read what a lesson's parameters are if none are given.

    Raises:
        ValueError: It has no parameters cell, or one that will not do.
    """
    notebook = files.read(lesson)
    tagged = [cell for cell in notebook.cells if "parameters" in files.tags(cell)]
    if len(tagged) != 1:
        raise ValueError(f"{lesson.name} has {len(tagged)} cells tagged 'parameters', not one")
    return declared(tagged[0])


def check(lesson: Path, given: Mapping[str, str], device: torch.device) -> dict[str, int | str]:
    """Turn the values given for a lesson into those that it can run with.

    Args:
        lesson: The notebook.
        given: Names and values, as text.
        device: Where the lesson will run.

    Returns:
        The values by name, in the types that the lesson declares, and the device's name.

    Raises:
        ValueError: With one sentence about the first thing that would not do.
    """
    usual = defaults(lesson)
    if "device" in given:
        raise ValueError("the device is not set in PARAMS: say DEVICE=cpu, or --device cpu")
    for name in given:
        if name not in usual:
            names = ", ".join(usual)
            raise ValueError(f"{lesson.name} has no parameter {name!r}, it has {names}")
    values = {name: _convert(name, text, type(usual[name])) for name, text in given.items()}
    all_values = usual | values
    data.check(all_values["dataset"], all_values["batch_size"])
    devices.check_seed(all_values["seed"])
    for name, value in values.items():
        if isinstance(value, int) and name != "seed" and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if "training_size" in values:
        data.check(all_values["dataset"], values["training_size"])
    return values | {"device": str(device)}


def _convert(name: str, text: str, kind: type) -> int | str:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} must be {TYPES[kind.__name__][1]}, got {text!r}") from None
