"""Helpers and lessons on a pretended accelerator, `tests.support.pretend`, in other processes."""

import subprocess
import sys
from xml.etree import ElementTree

import nbformat
import papermill
import pytest

from helpers.tooling.lesson import files
from tests.support.tried import SIZES
from tests.tooling.samples import DOOR, LESSONS, ROOT, run_pytest

# Python imports a module of this name when it starts, in a kernel and in what that starts as well.
STARTED = """\
import sys

sys.path.insert(0, {root!r})
import tests.support.pretend
"""
EXPANDED = "ExpandedWeights are a subclass of tensors, as those of the device are"
LAZY = "`.to()` gives a lazy parameter other data, which a wrapper cannot have"
CANNOT = {
    "06_limits": {
        "sparse-embedding": "the device refuses sparse gradients, which would end its process",
        "shared-layer": "torch copies wrappers in another way, and refuses in other words",
        **dict.fromkeys(["lazy-module", "lazy-module-mended"], LAZY),
        **dict.fromkeys(["wrong-loss-reduction", "wrong-loss-reduction-mended"], EXPANDED),
    },
    "07_speed_and_memory": dict.fromkeys(["equal-code", "equal-trap-code"], EXPANDED),
}
"""Cells that cannot run there, or not to the digit, each with the reason."""
SMALLER = {
    "08_private_training": {"steps": 3, "repeats": 1},
    "09_gradient_noise": {"starts": 1, "transformer_steps": 4},
    "11_tasks_and_ensembles": {"meta_steps": 4, "digit_steps": 4},
    "12_attribution_at_scale": {"halves": 3, "steps": 3, "repeats": 1},
    "13_language_model": {"pretraining": 4, "fine_tuning": 1, "group": 25, "repeats": 1},
}
"""Lessons that train for thousands of steps, and sizes at which they take a minute: an operation
there goes through Python. That they run is tested, not what so short a training gives."""
RUN = {"06_limits"}
"""Lessons that are run there, and not compared: entries draw from the device's own stream."""


@pytest.fixture(scope="module", autouse=True)
def device():
    """Skip where torch has not the private names that the device stands on."""
    command = [sys.executable, "-c", "import tests.support.pretend"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no pretended device here: {done.stderr.splitlines()[-1]}")


@pytest.mark.whole
def test_helpers_and_the_zoo():
    done = run_pytest(ROOT, "-q", "tests/support/device_cases.py")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.whole
@pytest.mark.parametrize("path", [DOOR, *LESSONS], ids=lambda path: path.stem)
def test_lesson(path, desk):
    """It runs there, and its saved outputs that must be the same everywhere are the same."""
    copy = desk / "notebooks" / path.name
    sizes = {"device": "pretend"} | SIZES.get(path.stem, {}) | SMALLER.get(path.stem, {})
    notebook = papermill.execute_notebook(path, copy, sizes, prepare_only=True, progress_bar=False)
    if path.stem in SMALLER or path.stem in RUN:
        for cell in notebook.cells:
            cell.metadata.pop("tags", None)
        nbformat.write(notebook, copy)
    (desk / "start").mkdir()
    (desk / "start" / "sitecustomize.py").write_text(STARTED.format(root=str(ROOT)))
    options = ["-q", "--nbval-lax", "--junitxml", "results.xml", "notebooks"]
    done = run_pytest(desk, *options, PYTHONPATH=str(desk / "start"))
    assert done.returncode in (0, 1), done.stdout[-5000:] + done.stderr[-2000:]
    cases = ElementTree.parse(desk / "results.xml").iter("testcase")
    numbers = [
        int(each.get("name").split()[1]) for each in cases if each.find("failure") is not None
    ]
    failed = {files.code_cells(notebook)[number].id for number in numbers}
    assert failed == set(CANNOT.get(path.stem, ())), done.stdout[-5000:]
