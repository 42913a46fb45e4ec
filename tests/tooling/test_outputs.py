"""Saved outputs: renewed where they must be, and otherwise the same to the byte."""

from pathlib import Path

import pytest

from helpers.tooling import outputs
from helpers.tooling.lesson import files
from tests.support.samples import LESSONS, ROOT, cell, code, lesson, save

CLOCK = "from tqdm import tqdm\nlist(tqdm('ab'))\nimport time\nprint(time.perf_counter())"


@pytest.mark.usefixtures("desk")
def test_twice_is_once_and_timings_stay():
    source = lesson(
        code("sum", "print(1, flush=True)\nprint(2, flush=True)\nbatch_size"),
        code("clock", CLOCK, "nbval-ignore-output"),
        code("where", "import os\nprint(os.path.basename(os.getcwd()))"),
    )
    source.metadata["papermill"] = {"duration": 3.1}
    cell(source, "sum").metadata["execution"] = {"iopub.status.busy": "2026-01-01"}
    del cell(source, "clock").metadata["output_of"]
    path = save(source, "01_a")

    assert outputs.main([]) == 0
    first = path.read_bytes()
    assert outputs.main(["1"]) == 0
    assert path.read_bytes() == first
    before = files.read(path)
    assert "papermill" not in before.metadata
    assert dict(cell(before, "sum").metadata) == {}
    assert [each.execution_count for each in files.code_cells(before)] == [1, 2, 3, 4]
    assert [each.get("text") for each in cell(before, "sum").outputs] == ["1\n2\n", None]
    assert cell(before, "where").outputs[0].text == "notebooks\n"
    assert [each.name for each in cell(before, "clock").outputs] == ["stdout"]  # no progress bar
    assert not list(path.parent.glob(".*"))

    assert outputs.main(["--timings"]) == 0
    renewed = files.read(path)
    assert cell(renewed, "clock").outputs != cell(before, "clock").outputs
    cell(renewed, "clock").outputs = cell(before, "clock").outputs
    assert renewed == before

    cell(renewed, "clock").source += "  # of this process"
    assert outputs.main([str(save(renewed, "01_a"))]) == 0
    assert cell(files.read(path), "clock").outputs != cell(before, "clock").outputs


@pytest.mark.usefixtures("desk")
def test_the_text_of_a_figure_is_where_nbconvert_and_jupyter_look():
    source = lesson(code("draw", "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"))
    cell(source, "draw").metadata["alt"] = "A line that rises."
    path = save(source, "01_a")
    assert outputs.main([]) == 0
    for result in (path, Path("build", "outputs", path.name)):  # saved, and as it ran
        (figure,) = cell(files.read(result), "draw").outputs
        assert figure.metadata["image/png"]["alt"] == "A line that rises."


@pytest.mark.usefixtures("desk")
def test_failed_lesson_stays_as_it_was(capsys):
    path = save(lesson(code("divide", "1 / 0", printed="saved\n")), "01_raises")
    before = path.read_bytes()
    assert outputs.main([]) == 1
    assert path.read_bytes() == before
    assert "01_raises.ipynb, cell 3 (divide): ZeroDivisionError" in capsys.readouterr().err


def test_the_picture_is_replaced_in_one_step(desk, monkeypatch):
    save(lesson(), "01_naive_loop")
    monkeypatch.setattr(outputs, "refresh", lambda *lesson, timings: None)
    monkeypatch.setattr(outputs, "picture", lambda lesson: b"new")
    old, earlier = desk / outputs.PICTURE, desk / "earlier.png"
    old.parent.mkdir()
    old.write_bytes(b"old")
    earlier.hardlink_to(old)
    assert outputs.main([]) == 0
    assert (old.read_bytes(), earlier.read_bytes()) == (b"new", b"old")


def test_picture_of_readme_is_what_lesson_1_has_saved():
    shown = (ROOT / outputs.PICTURE).read_bytes()
    assert shown == outputs.picture(LESSONS[0]), "`make outputs` renews the picture"
