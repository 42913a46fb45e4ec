"""The report of devices side by side, and the numbers that tables hand over to it."""

import re
import subprocess
import sys
from copy import deepcopy

import nbformat
import pandas as pd
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_output

from helpers import compare, handover, study
from helpers.tooling import anatomy, outputs, report, run
from tests.tooling.samples import cell, code, lesson, save

TIMING = {
    "kind": "timing",
    "reference": "loop",
    "rows": [
        {
            "method": "vmap $x <b>",
            "median_ms": 1.0,
            "spread_ms": 0.1,
            "ratio": 0.5,
            "missing": None,
        },
        {
            "method": "a peer",
            "median_ms": None,
            "spread_ms": None,
            "ratio": None,
            "missing": "absent",
        },
    ],
}


def executed(failure=None):
    """Make an executed lesson with a comparison and a timing."""
    grads = {"weight": torch.ones(2, 3)}
    comparison = compare.table(grads, grads)._repr_mimebundle_()
    notebook = lesson(code("check", "1"), code("time", "2", "nbval-ignore-output"))
    cell(notebook, "check").outputs = [new_output("display_data", comparison)]
    cell(notebook, "time").outputs = [new_output("display_data", {handover.MIME: TIMING})]
    notebook.metadata[run.METADATA] = nbformat.from_dict(
        {
            "failure": failure,
            "seconds": 3.1,
            "peak_memory": {"host": 2**30},
            "parameters": {"batch_size": 7},
            "machine": {"device": "A processor"},
            "versions": {"torch": "2.13.0"},
            "date": "2026-01-01",
        }
    )
    return notebook


def put(notebook, folder, name="01_a.ipynb"):
    path = run.BUILD / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


@pytest.mark.usefixtures("desk")
def test_devices_side_by_side(capsys):
    put(executed(), "cpu")
    other = deepcopy(executed())
    cell(other, "check").outputs[0].data[handover.MIME]["rows"][0]["shape"] = [9, 9]
    put(other, "cuda-1")
    hostile = "ValueError: <script>alert(1)</script>"
    put(executed(hostile), "cuda-1", "02_b.failed.ipynb")
    put(executed(), "colab", "03_c.ipynb")
    (run.BUILD / "cpu" / "04_d.ipynb").write_text("no notebook")
    put(executed(), "cpu", "05_e.running.ipynb")
    assert report.main() == 0
    page = (run.BUILD / "report.html").read_text()
    assert "shapes disagree" in page
    assert "(9, 9)" in page
    assert "(2, 3)" in page
    assert "never ran" in page
    assert "03_c" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert 'alt="Times of cell time' in page
    assert "vmap $x &lt;b&gt; 0.5, a peer absent." in page
    assert "cpu/04_d.ipynb was left out" in page
    assert "cpu/05_e.running.ipynb was left out: it is running, or was stopped before" in page
    assert "cpu/04_d.ipynb was left out" in capsys.readouterr().err
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)|url\(|@import|<link""", page)
    assert [path.name for path in run.BUILD.glob("*report*")] == ["report.html"]


@pytest.mark.usefixtures("desk")
def test_one_device_alone():
    put(executed(), "cpu")
    assert report.main() == 0
    assert "disagree" not in (run.BUILD / "report.html").read_text()


@pytest.mark.usefixtures("desk")
def test_nothing_ran(capsys):
    assert report.main() == 1
    assert capsys.readouterr().err == "build/ holds no executed lesson: `make run` first\n"


def test_shown_table_carries_its_numbers():
    grads = {"weight": torch.ones(2, 3)}
    table = compare.table({"weight": torch.ones(2, 3) + 0.5}, grads)
    shown, _ = InteractiveShell.instance().display_formatter.format(table)
    assert shown["text/plain"] == repr(pd.DataFrame(table))
    row = {"parameter": "weight", "shape": [2, 3], "error": 0.5, "tolerance": 1e-5, "equal": False}
    assert shown[handover.MIME] == {"kind": "comparison", "rows": [row]}
    verdicts, _ = InteractiveShell.instance().display_formatter.format(table["equal"])
    assert handover.MIME not in verdicts


def test_study_carries_its_times():
    rows = {"iqr": 0.001, "peak": None, "held": None, "faults": None}
    measured = {"batch gradient": {**rows, "median": 0.01}, "loop": {**rows, "median": 0.05}}
    done = {"candidates": measured, "absent": {"JAX": "it is not there"}, "failed": {}}
    shown, _ = InteractiveShell.instance().display_formatter.format(study.table(done))
    content = shown[handover.MIME]
    assert (content["kind"], content["reference"]) == ("timing", "batch gradient")
    seen = [
        (row["method"], row["median_ms"], row["ratio"], row["missing"]) for row in content["rows"]
    ]
    assert seen == [
        ("batch gradient", 10.0, 1.0, None),
        ("loop", 50.0, 5.0, None),
        ("JAX", None, None, "absent"),
    ]


def test_saved_lesson_carries_none():
    notebook = executed()
    outputs.normalise(notebook)
    assert handover.MIME not in nbformat.writes(notebook)


@pytest.mark.parametrize("watched", [True, False])
def test_nbval_passes_over_what_is_not_saved(watched, desk):
    """Without the plugin it does not, which shows that the plugin is what does it."""
    source = (
        "import torch\nfrom helpers import compare\n\n"
        'grads = {"weight": torch.ones(2, 3)}\ncompare.check(grads, grads)'
    )
    path = save(lesson(code("set-up", anatomy.SETUP), code("check", source)), "01_a")
    outputs.refresh(path, timings=True)
    assert handover.MIME not in path.read_text()
    plugin = ["-p", "helpers.tooling.nbval_watch"] if watched else []
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "--nbval", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=desk)
    assert done.returncode == (0 if watched else 1), done.stdout
