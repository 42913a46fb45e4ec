"""Helpers and lessons on the pretended accelerator, `tests/pretend.py`, in other processes."""

import os
import re
import subprocess
import sys

import pytest

from helpers.tooling.lesson import files
from tests.tooling.samples import LESSONS, ROOT, quick, save

# Python imports a module of this name when it starts, in a kernel and in what that starts as well.
STARTED = """\
import sys

sys.path.insert(0, {root!r})
import tests.pretend
"""
CANNOT = {
    "03_torch_func": {"check-3": "rounding decides between nearly equal values of a pooling"},
    "07_speed_and_memory": {
        "equal-code": "ExpandedWeights are a subclass of tensors, as those of the device are",
        "equal-trap-code": "the same",
    },
    "10_kernels": {
        "laplace-check": "a parameter made inside of vmap cannot be of a subclass of tensors"
    },
}
"""Cells that cannot run there, or not to the digit, each with the reason."""
TOO_LONG = {"08_private_training", "09_gradient_noise", "11_tasks_and_ensembles"}
"""Lessons that train for thousands of steps. Each operation there goes through Python, and a cell
takes longer than the five minutes it has. What they import is in `tests/device_cases.py`."""


def run_pytest(folder, *arguments, **environment):
    """Run pytest with the collection's configuration in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / ".pytest.ini")]
    command += ["-p", "no:cacheprovider", "--color=no", "-q", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **environment},
    )


@pytest.mark.whole
def test_helpers_and_the_zoo():
    done = run_pytest(ROOT, "--rootdir", str(ROOT), "tests/device_cases.py")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.whole
@pytest.mark.parametrize(
    "path", [path for path in LESSONS if path.stem not in TOO_LONG], ids=lambda path: path.stem
)
def test_lesson(path, desk):
    """Its saved outputs that must be the same everywhere are the same there."""
    notebook = files.read(path)
    (sizes,) = (each for each in notebook.cells if "parameters" in files.tags(each))
    sizes.source = re.sub(r'(?m)^device: str = "auto"', 'device: str = "pretend"', sizes.source)
    save(quick(notebook), path.stem)
    (desk / "start").mkdir()
    (desk / "start" / "sitecustomize.py").write_text(STARTED.format(root=str(ROOT)))
    done = run_pytest(
        desk, "--rootdir", str(desk), "--nbval-lax", "notebooks", PYTHONPATH=str(desk / "start")
    )
    failed = set(re.findall(r"^FAILED .* - cell \d+ \(([\w-]+)\)", done.stdout, re.M))
    assert done.returncode in (0, 1), done.stdout[-5000:] + done.stderr[-2000:]
    assert failed == set(CANNOT.get(path.stem, ())), done.stdout[-5000:]
