"""The report of devices side by side."""

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_output

from helpers.tooling import report, run
from tests.tooling.samples import cell, code, lesson


def executed(verdict="equal: True\n", *, failure=None, **about):
    """Make an executed lesson: a verdict, a table, progress and a picture."""
    notebook = lesson(
        code("verdict", "print(1)", printed=verdict), code("table", "2"), code("picture", "3")
    )
    table = {"text/html": "<table><tr><td>7</td></tr></table>", "text/plain": "7"}
    cell(notebook, "table").outputs = [
        new_output("stream", name="stderr", text="100%"),
        new_output("display_data", table),
    ]
    picture = {"image/png": "aaaa", "text/plain": "<Figure>"}
    cell(notebook, "picture").outputs = [new_output("display_data", picture)]
    notebook.metadata[run.METADATA] = nbformat.from_dict(
        {
            "failure": failure,
            "seconds": 3.14,
            "peak_memory": {"host": 2**30, "cuda": 2**20},
            "parameters": {"device": "cpu", "batch_size": 7},
            "machine": {"device": "A processor"},
            "versions": {"torch": "2.13.0"},
            "date": "2026-01-01",
            **about,
        }
    )
    return notebook


def put(notebook, folder, name="01_a.ipynb"):
    path = run.BUILD / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def page():
    return BeautifulSoup(report.render(report.collect()), "html.parser")


def column(table, device):
    """Read what stands in the column of a device: the lines of each cell, by its row."""
    rows = [row.find_all(["th", "td"]) for row in table.find_all("tr")]
    place = [each.text for each in rows[0]].index(device)
    return {row[0].text: row[place].get_text("\n") for row in rows[1:]}


@pytest.mark.usefixtures("desk")
def test_how_each_lesson_went_and_on_what():
    put(executed(), "cpu")
    put(executed(failure="<script>alert(1)</script>"), "cpu", "02_b.failed.ipynb")
    other = "cuda-0@node-7.cluster"
    put(executed(parameters={"batch_size": 5}, versions={"torch": "2.6.0"}), other)
    put(executed(parameters={"batch_size": 5}), other, "03_c.ipynb")
    put(executed(), "colab", "08_h.ipynb")
    shown = page()
    went = column(shown.table, "cpu")
    assert went.pop("01_a") == "passed\n3.1 s\n1 MiB on the GPU\n1,024 MiB on the host"
    assert went.pop("02_b").startswith("failed\n: <script>alert(1)</script>\n3.1 s")
    assert went == {"03_c": "not run"}
    assert not shown.select("script, link, [src], [href]:not([href='#01_a'])")
    facts = shown.find_all("table")[1]
    ran = {"device": "A processor", "batch_size": "7", "torch": "2.13.0", "date": "2026-01-01"}
    assert column(facts, "cpu") == ran
    there = column(facts, other)
    assert {*there["torch"].split(", ")} == {"2.6.0", "2.13.0"}
    assert there == ran | {"batch_size": "5", "torch": there["torch"]}


@pytest.mark.usefixtures("desk")
def test_outputs_that_differ_stand_side_by_side():
    put(executed("equal: <True>\n"), "cpu")
    other = executed("equal: False\n")
    progress, table = cell(other, "table").outputs
    progress.text, table.data["text/plain"] = "50%", "8"
    cell(other, "picture").outputs[0].data["image/png"] = "bbbb"
    put(other, "cuda")
    put(executed(), "cpu", "02_b.ipynb")
    shown = page().select(".devices > div")
    assert [each.text for each in shown] == [
        *("cpuequal: <True>\n", "cudaequal: False\n"),
        *("cpu7", "cuda7"),  # the text differs, and the table is what is shown
    ]
    assert shown[0].find_previous("details").text == "cell 3 (verdict)print(1)"
    assert [each["id"] for each in page().select("h2[id]")] == ["01_a"]


def test_what_differs_is_what_all_runs_reached():
    other = executed()
    for each in (cell(other, "table"), cell(other, "picture")):
        each.outputs, each.execution_count = [], None
    cell(other, "verdict").outputs = [new_output("error", ename="E", evalue="no", traceback=[])]
    ((different),) = report.differing({"cpu": executed(), "cuda": other})
    assert different["cuda"].id == "verdict"
