"""Helpers and lessons on a pretended accelerator, `tests.support.pretend`, in other processes."""

import subprocess
import sys

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell

from tests.lessons.tried import SIZES
from tests.support.samples import DOOR, LESSONS, ROOT, cell, run_pytest

IMPORTED = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport tests.support.pretend\n"
# A kernel takes no folder from outside. What it starts does, and imports sitecustomize by itself.
FIRST = f"import os\nos.environ['PYTHONPATH'] = {{folder!r}}\n{IMPORTED}"
CANNOT = {
    "06b_reference": (
        "sparse-gradients",  # would end the process
        "shared-layer",  # torch copies wrappers in another way, and refuses in other words
        "lazy-module",  # `.to()` gives a lazy parameter other data, which a wrapper cannot have
        # ExpandedWeights are a subclass of tensors, as those of the device are.
        "wrong-loss-reduction",
        # An accelerator has one operation for a cell of an LSTM or a GRU, which a CPU has not.
        *("data-dependent", "data-dependent-fixed", "operator-fallback", "recurrent-rule"),
    ),
    "07b_which_way": ("ways", "peers-times"),  # ExpandedWeights
    "14_inputs": ("check-1",),  # `triu_indices`
}
"""Cells that cannot run there, or not to the digit."""
SMALLER = {
    "05b_which_digits": {"training_size": 100},
    "06b_reference": {},  # entries draw from the device's own stream
    "08_private_training": {"steps": 3, "repeats": 2},
    "08b_is_it_private": {"steps": 3, "repeats": 1},
    "08c_noise_with_memory": {"repeats": 2},
    "09_gradient_noise": {"starts": 1},
    "11_tasks_and_ensembles": {"meta_steps": 4, "digit_steps": 4},
    "12_attribution_at_scale": {"halves": 3, "steps": 3, "repeats": 1},
    "12b_through_training": {"halves": 3, "steps": 3, "repeats": 1},
    "13_language_model": {"steps": 2},
    "13b_what_it_learned_from": {"pretraining": 4, "fine_tuning": 1},
}
"""Sizes at which lessons take a minute, since an operation there goes through Python: that these
run there is tested, and not what they print."""


@pytest.fixture(scope="module", autouse=True)
def device():
    """Skip where torch has not the private names that the device stands on."""
    command = [sys.executable, "-c", "import tests.support.pretend"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    if done.returncode:
        pytest.skip(f"no pretended device here: {done.stderr.splitlines()[-1]}")


@pytest.mark.whole
@pytest.mark.parametrize("has_float64", ["1", "0"])
def test_helpers_and_the_zoo(has_float64):
    options = {"PRETEND_FLOAT64": has_float64}
    done = run_pytest(ROOT, "-q", "tests/support/device_cases.py", **options)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.whole
@pytest.mark.parametrize("path", [DOOR, *LESSONS], ids=lambda path: path.stem)
def test_lesson(path, tmp_path):
    copy = tmp_path / "notebooks" / path.name
    copy.parent.mkdir()
    (tmp_path / "helpers").symlink_to(ROOT / "helpers")
    sizes = {"device": "auto"} | SIZES.get(path.stem, {}) | SMALLER.get(path.stem, {})
    notebook = papermill.execute_notebook(path, copy, sizes, prepare_only=True, progress_bar=False)
    for each in notebook.cells:
        # A lesson in plain PyTorch knows one kind of device without float64 by its name.
        each.source = each.source.replace('.type == "mps"', '.type in ("mps", "pretend")')
        # One draw of digits, since lesson 5b trains hundreds of networks for each.
        each.source = each.source.replace("(first_draw, new_draw(), new_draw())", "(first_draw,)")
    if path.stem in SMALLER:
        for each in notebook.cells:
            each.metadata.pop("tags", None)
    for identity in CANNOT.get(path.stem, ()):
        cell(notebook, identity).metadata.tags = ["raises-exception"]
    start = tmp_path / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text(IMPORTED, "utf-8")
    notebook.cells.insert(0, new_code_cell(FIRST.format(folder=str(start))))
    nbformat.write(notebook, copy)
    # Without float64, as on a Mac: what needs it has to move to the CPU.
    done = run_pytest(tmp_path, "-q", "--nbval-lax", "notebooks", PRETEND_FLOAT64="0")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
