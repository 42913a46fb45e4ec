"""The comparison of saved outputs: what was altered by hand is caught, a dead kernel soon."""

import re
import subprocess
import sys
import time
from pathlib import Path

from helpers.tooling.lesson import files
from tests.tooling.samples import LESSONS, ROOT, cell, code, lesson, save

SHAPE = re.compile(r"\((\d+)((?:, \d+){2,})\)")
MODULE = [sys.executable, "-m", "pytest"]
COMMAND = [str(Path(sys.executable).with_name("pytest"))]


def outcomes(desk: Path, pytest_command: list[str], *options: str) -> dict[str, str]:
    """Run pytest with the collection's configuration over the lessons of a desk.

    Returns:
        The outcome of each cell, under `"01_good 3"`, where 3 is nbval's number, from 0.
    """
    command = [*pytest_command, "-c", str(ROOT / ".pytest.ini"), "--rootdir", str(desk)]
    command += ["-rA", "-p", "no:cacheprovider", "--color=no", *options, "notebooks"]
    shown = subprocess.run(command, cwd=desk, capture_output=True, text=True, timeout=300)
    found = re.findall(r"^(PASSED|FAILED|ERROR) \S*?(\w+)\.ipynb::Cell (\d+)", shown.stdout, re.M)
    assert found, shown.stdout + shown.stderr
    return {f"{stem} {number}": outcome for outcome, stem, number in found}


def alter_shape(damaged):
    """Change one digit of a saved shape."""
    (output,) = (each for each in damaged.outputs if SHAPE.search(each.get("text", "")))
    output.text = SHAPE.sub(lambda found: f"({int(found[1]) ^ 1}{found[2]})", output.text, count=1)


def flip_verdict(damaged):
    """Turn a saved True into False."""
    (output,) = (each for each in damaged.outputs if "True" in each.get("text", ""))
    output.text = output.text.replace("True", "False", 1)


def test_damaged_outputs_and_dead_kernels_fail(desk):
    def printing():
        return lesson(
            code("shape", "print((batch_size, 32, 1, 3, 3))", printed="(64, 32, 1, 3, 3)\n"),
            code("verdict", 'print("equal:", 1 + 1 == 2)', printed="equal: True\n"),
            code("clock", "import time", "nbval-ignore-output", printed="3.1 ms\n"),
        )

    save(printing(), "01_good")
    shape, verdict = printing(), printing()
    alter_shape(cell(shape, "shape"))
    flip_verdict(cell(verdict, "verdict"))
    save(shape, "02_shape")
    save(verdict, "03_verdict")
    dying = "import os, time\ntime.sleep(0.5)\nos._exit(1)"
    save(lesson(code("die", dying), code("after", "1")), "04_dies")
    start = time.monotonic()

    found = outcomes(desk, MODULE)

    assert time.monotonic() - start < 30, "a dead kernel must be noticed within seconds"
    assert len(found) == 3 * 4 + 3
    failed = {name for name, outcome in found.items() if outcome != "PASSED"}
    assert failed == {"02_shape 1", "03_verdict 2", "04_dies 1", "04_dies 2"}


def test_lax_compares_what_is_tagged(desk):
    notebook = lesson(
        code("plain", "print(42)", printed="43\n"),
        code("tagged", "print(42)", "nbval-check-output", printed="43\n"),
    )
    save(notebook, "01_a")
    assert outcomes(desk, COMMAND, "--nbval-lax") == {
        "01_a 0": "PASSED",
        "01_a 1": "PASSED",
        "01_a 2": "FAILED",
    }


def opening(path: Path):
    """Cut a lesson off after the first shape and the first verdict that it prints and compares."""
    notebook = files.read(path)
    found = {}
    for number, each in enumerate(notebook.cells):
        if each.cell_type == "code" and files.is_compared(each):
            printed = "".join(output.get("text", "") for output in each.outputs)
            if SHAPE.search(printed):
                found.setdefault("shape", each)
            elif "True" in printed:
                found.setdefault("verdict", each)
        if len(found) == 2:
            del notebook.cells[number + 1 :]
            break
    return notebook, found


def test_damaged_outputs_of_a_real_lesson_fail(desk):
    openings = [opening(path) for path in LESSONS]
    complete = [each for each in openings if len(each[1]) == 2]
    assert complete, "no lesson prints a shape and a verdict"
    notebook, found = min(complete, key=lambda each: len(each[0].cells))
    alter_shape(found["shape"])
    flip_verdict(found["verdict"])
    save(notebook, "01_real")

    failed = {name for name, outcome in outcomes(desk, MODULE).items() if outcome != "PASSED"}

    ids = [each.id for each in files.code_cells(notebook)]
    assert failed == {f"01_real {ids.index(each.id)}" for each in found.values()}
