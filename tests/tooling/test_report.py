"""The report of devices side by side, and the numbers that tables hand over to it."""

import html
import json
import re
import subprocess
import sys
from base64 import b64decode
from copy import deepcopy

import nbformat
import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nbformat.v4 import new_output
from torch.utils.benchmark import Measurement
from torch.utils.benchmark.utils.common import TaskSpec

from helpers import benchmark, compare, handover
from helpers.study import tables as study_tables
from helpers.study.facts import Candidate, Missing, Row, Study, Task
from helpers.tooling import outputs, run
from helpers.tooling.lesson import form
from helpers.tooling.report import __main__ as report
from helpers.tooling.report import plot, tables
from tests.tooling.samples import cell, code, good_lesson, lesson, save

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
            "parameters": {"device": "cpu", "batch_size": 7},
            "asked": ["01_a", "06_f"],
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


def states(page, device):
    """Read the first table: what stands in the column of a device, the first line of each cell."""
    rows = BeautifulSoup(page, "html.parser").table.find_all("tr")
    heads, *cells = [
        [each.get_text("\n").strip() for each in row.find_all(["th", "td"])] for row in rows
    ]
    texts = {row[0]: row[heads.index(device)].replace("\n: \n", ": ") for row in cells}
    return {name: text.partition("\n")[0] for name, text in texts.items()}


def timing(**changes):
    """Make a timing in which the second row is changed, at first that of a candidate that ran."""
    table = deepcopy(TIMING)
    table["rows"][1] = {**TIMING["rows"][0], "method": "a peer", **changes}
    return table


def drawn(image):
    """Decode a plot, in which text is drawn, and stands in comments."""
    return b64decode(image.removeprefix("data:image/svg+xml;base64,")).decode()


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
    for stem in ("06_f", "07_g"):
        save(good_lesson(), stem)
    assert report.main() == 0
    page = (run.BUILD / "report.html").read_text()
    assert "shapes disagree" in page
    assert "(9, 9)" in page
    assert "(2, 3)" in page
    assert states(page, "cpu") == {
        "all": "1 passed, 1 unfinished, 1 not usable, 1 never ran, 2 left out",
        "01_a": "passed",
        "02_b": "left out",
        "04_d": "not usable",
        "05_e": "unfinished",
        "06_f": "never ran",
        "07_g": "left out",
    }
    assert states(page, "cuda-1")["all"] == "1 passed, 1 failed, 1 never ran, 3 left out"
    assert states(page, "cuda-1")["02_b"] == f"failed: {hostile}"
    assert "03_c" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page
    assert 'alt="Times of cell time' in page
    assert "vmap $x &lt;b&gt; 0.50, a peer absent." in page
    assert "cpu/04_d.ipynb was not used" in page
    assert "cpu/05_e.running.ipynb was not used: it is running, or was stopped before" in page
    assert "cpu/04_d.ipynb was not used" in capsys.readouterr().err
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)|url\(|@import|<link""", page)
    assert [path.name for path in run.BUILD.glob("*report*")] == ["report.html"]


@pytest.mark.usefixtures("desk")
def test_the_same_device_of_another_machine():
    put(executed(), "cpu")
    put(executed("ValueError: there"), "cpu@node-7.cluster")
    put(executed(), "cuda-0@node-7.cluster")
    put(executed(), "cpu@", "02_b.ipynb")
    assert report.main() == 0
    page = (run.BUILD / "report.html").read_text()
    assert states(page, "cpu")["01_a"] == "passed"
    assert states(page, "cpu@node-7.cluster")["01_a"] == "failed: ValueError: there"
    assert states(page, "cuda-0@node-7.cluster against cpu")["01_a"] == "1.0 times as fast"
    assert "02_b" not in page


@pytest.mark.usefixtures("desk")
def test_one_device_alone():
    put(executed(), "cpu")
    assert report.main() == 0
    assert "disagree" not in (run.BUILD / "report.html").read_text()


@pytest.mark.usefixtures("desk")
def test_same_bytes_each_time():
    put(executed(), "cpu")
    pages = [report.main() or (run.BUILD / "report.html").read_bytes() for _ in range(2)]
    assert pages[0] == pages[1]


@pytest.mark.usefixtures("desk")
def test_run_times_against_each_other():
    slow, fast = executed(), executed()
    slow.metadata[run.METADATA].seconds = 31.0
    failed = executed("ValueError: no")
    small = executed()
    small.metadata[run.METADATA].parameters = {"device": "cuda", "batch_size": 5}
    for name, (first, second) in {
        "01_a": (slow, fast),
        "02_b": (fast, slow),
        "03_c": (fast, failed),
        "04_d": (slow, small),
    }.items():
        put(first, "cpu", f"{name}.ipynb")
        put(second, "cuda", f"{name}.failed.ipynb" if second is failed else f"{name}.ipynb")
    put(fast, "cuda", "05_e.ipynb")
    assert report.main() == 0
    page = (run.BUILD / "report.html").read_text()
    assert states(page, "cuda against cpu") == {
        "all": "",
        "01_a": "10.0 times as fast",
        "02_b": "0.1 times as fast",
        "03_c": "",
        "04_d": "batch_size differs: 7 on cpu, 5 on cuda",
        "05_e": "",
    }
    assert page.count('<p class="bad">batch_size differs: 7 on cpu, 5 on cuda</p>') == 1


@pytest.mark.usefixtures("desk")
def test_what_is_the_same_on_devices_stands_once():
    put(executed(), "cpu")
    put(executed(), "cpu", "02_b.ipynb")
    other = executed()
    other.metadata[run.METADATA].versions = {"torch": "2.6.0", "numpy": "2.0"}
    put(other, "cuda")
    put(executed(), "cuda", "02_b.ipynb")
    assert report.main() == 0
    page = BeautifulSoup((run.BUILD / "report.html").read_text(), "html.parser")
    rows = [
        [each.text for each in row.find_all("td")]
        for row in page.find_all("table")[-1].find_all("tr")
    ]
    assert [row for row in rows if row] == [
        ["date", "2026-01-01"],
        ["device", "A processor"],
        ["torch", "2.13.0", "2.6.0 (01), 2.13.0 (02)"],
        ["numpy", "", "2.0 (01)"],
        ["batch_size", "7"],
    ]


def test_missing_time_is_a_gap_that_says_why(monkeypatch):
    words = []
    text = Axes.text
    monkeypatch.setattr(Axes, "text", lambda *a, **k: words.append(a[3]) or text(*a, **k))
    bars = []
    barh = Axes.barh
    monkeypatch.setattr(Axes, "barh", lambda *a, **k: bars.append(a[2]) or barh(*a, **k))
    checked = [
        tables.check_table(timing(**changes))
        for changes in (
            {"ratio": None, "missing": "failed"},
            {"ratio": float("nan")},
            {"ratio": 0.0},
            {},
        )
    ]
    plot.draw(dict(zip("abcd", checked, strict=True)))
    assert words == ["a: failed", "b: not measured", "c: below 0.01"]
    assert bars == [[0.5], [0.5], [0.5], [0.5, 0.5]]
    words.clear()
    plot.draw({"a": checked[0]})
    assert words == ["failed"]


@pytest.mark.parametrize(("ratio", "scale"), [(9.9, "linear"), (10.1, "log")])
def test_axis_is_logarithmic_from_a_factor_of_20(ratio, scale, monkeypatch):
    figures = []
    savefig = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda f, *a, **k: figures.append(f) or savefig(f, *a, **k)
    )
    plot.draw({"cpu": tables.check_table(timing(ratio=ratio))})
    (axes,) = figures[0].axes
    assert axes.get_xscale() == scale
    assert axes.get_xlim()[0] < 0.5 < ratio < axes.get_xlim()[1]


def test_plot_follows_the_colours_of_the_page():
    svg = drawn(plot.draw({"cpu": tables.check_table(timing())}))
    assert "prefers-color-scheme: dark" in svg
    assert "currentColor" in svg
    assert plot.INK not in svg
    assert not re.search(r"(fill|stroke): #(fff|000)", svg)


@pytest.mark.usefixtures("desk")
def test_missing_spread_is_empty():
    notebook = executed()
    cell(notebook, "time").outputs[0].data[handover.MIME] = timing(spread_ms=None)
    put(notebook, "cpu")
    assert report.main() == 0
    page = (run.BUILD / "report.html").read_text()
    assert "<td>a peer</td><td>1.00</td><td></td><td>0.50</td>" in page
    assert "None" not in page


@pytest.mark.parametrize(
    ("error", "instead", "shown"),
    [
        (float("inf"), None, "not finite"),
        (float("nan"), None, "not finite"),
        (None, "missing", "missing"),
        (None, None, "none"),
        (2.5e-7, None, "2.5e-07"),
        (0, None, "0"),
    ],
)
@pytest.mark.usefixtures("desk")
def test_largest_error_is_a_number_or_words(error, instead, shown):
    notebook = executed()
    row = cell(notebook, "check").outputs[0].data[handover.MIME]["rows"][0]
    row.update(error=error, instead=instead)
    put(notebook, "cpu")
    assert report.main() == 0
    assert f"<td>{shown} <span" in (run.BUILD / "report.html").read_text()


MALFORMED = {
    "text": ("text", "it is malformed: 'text' is not of type 'object'"),
    "kind": ({"kind": "x"}, "kind: 'x' is not one of ['comparison', 'timing']"),
    "no rows": ({**TIMING, "rows": []}, "rows: [] should be non-empty"),
    "no ratio": ({**TIMING, "rows": [{}]}, "rows[0]: 'method' is a required property"),
    "word": (timing(ratio="fast"), "rows[1].ratio: 'fast' is not of type 'number', 'null'"),
    "huge": (timing(ratio=10**400), "rows[1].ratio: 1" + 119 * "0"),
    "twice": (
        {**TIMING, "rows": [TIMING["rows"][0]] * 2},
        "two rows are named 'vmap $x <b>'",
    ),
    "negative": (timing(ratio=-1), "rows[1].ratio: -1 is less than the minimum of 0"),
    "shape": (
        {
            "kind": "comparison",
            "rows": [
                {
                    "shape": 3,
                    "parameter": "w",
                    "error": 0,
                    "instead": None,
                    "tolerance": 0,
                    "equal": True,
                }
            ],
        },
        "rows[0].shape: 3 is not of type 'array'",
    ),
}


@pytest.mark.parametrize(("content", "reason"), MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.usefixtures("desk")
def test_malformed_table_is_left_out_alone(content, reason, capsys):
    notebook = executed()
    cell(notebook, "time").outputs[0].data[handover.MIME] = content
    put(notebook, "cpu")
    assert report.main() == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cpu/01_a.ipynb: a table of cell time was left out: it is malformed: ")
    assert line.endswith(reason)
    page = (run.BUILD / "report.html").read_text()
    assert html.escape(line).replace("&#x27;", "&#39;") in page
    assert "(2, 3)" in page
    assert "<img" not in page


@pytest.mark.usefixtures("desk")
def test_run_that_says_too_little_of_itself(capsys):
    notebook = executed()
    del notebook.metadata[run.METADATA]["seconds"]
    put(notebook, "cpu")
    assert report.main() == 1
    assert capsys.readouterr().err.startswith(
        "cpu/01_a.ipynb was not used: what it says of its run (`make run` executes it anew) is "
        "malformed: 'seconds' is a required property\n"
    )


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e-320])
@pytest.mark.usefixtures("desk")
def test_run_time_is_a_number(seconds, capsys):
    notebook = executed()
    notebook.metadata[run.METADATA]["seconds"] = seconds
    put(notebook, "cpu")
    assert report.main() == 1
    assert "what it says of its run" in capsys.readouterr().err


@pytest.mark.parametrize("ratio", [1e-308, 1e100])
def test_extreme_times_can_be_drawn(ratio):
    drawn(plot.draw({"cpu": tables.check_table(timing(ratio=ratio))}))


@pytest.mark.usefixtures("desk")
def test_device_without_a_usable_result_has_its_column():
    put(executed(), "cpu")
    path = put(executed(), "cuda")
    path.write_text("text")
    assert report.main() == 0
    page = BeautifulSoup((run.BUILD / "report.html").read_text(), "html.parser")
    assert "not usable" in page.table.text


@pytest.mark.usefixtures("desk")
def test_page_that_cannot_be_written(capsys):
    put(executed(), "cpu")
    (run.BUILD / "report.html").mkdir()
    assert report.main() == 1
    assert capsys.readouterr().err == "cannot write build/report.html: Is a directory\n"
    assert [path.name for path in run.BUILD.glob(".*")] == []


@pytest.mark.usefixtures("desk")
def test_cells_without_ids_and_with_several_tables(capsys, recwarn):
    notebook = executed()
    cell(notebook, "time").outputs *= 2
    content = json.loads(nbformat.writes(notebook))
    for each in content["cells"]:
        if each["id"] == "check":
            del each["id"]
    path = put(notebook, "cpu")
    path.write_text(json.dumps(content))
    assert report.main() == 0
    assert capsys.readouterr().err == ""
    assert list(recwarn) == []
    page = (run.BUILD / "report.html").read_text()
    assert "<td>number 3</td>" in page
    assert "Times of cell time</summary>" in page
    assert "Times of cell time, table 2</summary>" in page


@pytest.mark.usefixtures("desk")
def test_nothing_ran(capsys):
    assert report.main() == 1
    assert capsys.readouterr().err == "build/ holds no executed lesson: `make run` first\n"


def test_shown_table_carries_its_numbers():
    grads = {"weight": torch.ones(2, 3)}
    table = compare.table({"weight": torch.ones(2, 3) + 0.5}, grads)
    shown, _ = InteractiveShell.instance().display_formatter.format(table)
    assert shown["text/plain"] == repr(pd.DataFrame(table))
    row = {"parameter": "weight", "shape": [2, 3], "error": 0.5, "instead": None}
    row |= {"tolerance": 1e-5, "equal": False}
    content = json.loads(json.dumps(shown[handover.MIME]))
    assert content == {"kind": "comparison", "rows": [row]}
    verdicts, _ = InteractiveShell.instance().display_formatter.format(table["equal"])
    assert handover.MIME not in verdicts


@pytest.mark.parametrize(
    ("got", "instead"),
    [
        ({"weight": torch.full((2, 3), torch.nan)}, "not finite"),
        ({"weight": torch.ones(2, 4)}, "expected (2, 3)"),
        ({}, "missing"),
    ],
)
def test_comparison_without_an_error_says_why(got, instead):
    table = compare.table(got, {"weight": torch.ones(2, 3)})
    (row,) = table._repr_mimebundle_()[handover.MIME]["rows"]
    assert (row["error"], row["instead"], row["equal"]) == (None, instead, False)


def timed(reference, **medians):
    """Set out times of two equal rounds each, in seconds: a single one has no spread."""
    spec = TaskSpec("", "")
    times = {name: Measurement(1, [median] * 2, spec) for name, median in medians.items()}
    return benchmark.table(times, reference=reference)


def handed_over(table):
    """List what a shown table hands over: the label of each row, and its ratio."""
    content = table._repr_mimebundle_().get(handover.MIME, {"rows": []})
    return [(row["method"], row["ratio"]) for row in content["rows"]]


def test_numbers_keep_their_digits():
    table = timed("loop", loop=0.0123456, vmap=0.001)
    content = table._repr_mimebundle_()[handover.MIME]
    assert content["rows"][0]["median_ms"] == 0.0123456 * 1e3
    assert handed_over(table)[1] == ("vmap", 0.001 / 0.0123456)
    assert table["median (ms)"].tolist() == [12.35, 1.0]


def test_rows_that_are_chosen_or_joined_keep_their_numbers():
    small, large = timed("loop", loop=0.01, vmap=0.002), timed("loop", loop=0.01, vmap=0.003)
    assert handed_over(small.reindex(["vmap", "other"]).dropna()) == [("vmap", 0.2)]
    assert handed_over(small[small["times loop"] < 1]) == [("vmap", 0.2)]
    joined = pd.concat({1: small, 64: large}, names=["B"])
    rows = [("1, loop", 1.0), ("1, vmap", 0.2), ("64, loop", 1.0), ("64, vmap", 0.3)]
    assert handed_over(joined) == rows
    assert handed_over(joined.loc[[(64, "vmap")]]) == rows[3:]
    assert handed_over(pd.concat([small.loc[["vmap"]], large])) == []  # two rows of one name


def test_what_is_joined_from_unlike_tables_hands_nothing_over():
    table = timed("loop", loop=0.01)
    comparison = compare.table({"w": torch.ones(2)}, {"w": torch.ones(2)})
    for other in (timed("vmap", vmap=0.01), comparison, pd.DataFrame({"a": [1]}, index=["b"])):
        assert handed_over(pd.concat([table, other])) == []
    assert handed_over(pd.concat([table, table], axis=1)) == []
    assert handed_over(table.reset_index()) == []


@pytest.mark.parametrize(("rounds", "spread"), [(5, 1.0), (1, None)])
@pytest.mark.parametrize("absent", [["JAX"], []])
def test_study_carries_its_times(rounds, spread, absent):
    rows = [
        Row(Candidate(name), median, 0.001, rounds, None, None, None, 1.0)
        for name, median in (("batch gradient", 0.01), ("loop", 0.05))
    ]
    missing = [Missing(Candidate(name), absent=True, why="it is not there") for name in absent]
    done = Study("gradients", Task(), tuple(rows), tuple(missing))
    shown, _ = InteractiveShell.instance().display_formatter.format(study_tables.times(done))
    content = shown[handover.MIME]
    assert (content["kind"], content["reference"]) == ("timing", "batch gradient")
    spreads = [row["spread_ms"] for row in content["rows"]]
    assert spreads == [spread, spread, None][: len(spreads)]
    seen = [
        (row["method"], row["median_ms"], row["ratio"], row["missing"]) for row in content["rows"]
    ]
    assert seen == [
        ("batch gradient", 10.0, 1.0, None),
        ("loop", 50.0, 5.0, None),
        *(("JAX", None, None, "absent") for _ in absent),
    ]


def test_saved_lesson_carries_none():
    notebook = executed()
    form.normalise(notebook)
    assert handover.MIME not in nbformat.writes(notebook)


@pytest.mark.whole
@pytest.mark.parametrize("watched", [True, False])
def test_nbval_passes_over_what_is_not_saved(watched, desk):
    """Without the plugin it does not, which shows that the plugin is what does it."""
    source = (
        "import torch\nfrom helpers import compare\n\n"
        'grads = {"weight": torch.ones(2, 3)}\ncompare.check(grads, grads)'
    )
    path = save(lesson(code("set-up", form.SETUP), code("check", source)), "01_a")
    outputs.refresh(path, timings=True)
    assert handover.MIME not in path.read_text()
    plugin = ["-p", "helpers.tooling.checks.nbval_watch"] if watched else []
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "--nbval", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=desk)
    assert done.returncode == (0 if watched else 1), done.stdout
