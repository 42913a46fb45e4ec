"""Records of measurements: read back as written, and refused when something is missing."""

import copy
import re

import matplotlib.figure
import pytest
import torch

from helpers.plots import timings
from helpers.study import comparison, records


def row(median):
    return dict(median=median, iqr=0.001, rounds=3, peak=2**20, held=0, faults=7, first=1.0)


STUDY = {
    "group": "gradients",
    "task": {"model": "MLP", "batch_size": 4},
    "candidates": {"batch gradient": row(0.01), "loop": row(0.05)},
    "absent": {"JAX": "JAX is not installed: make peers"},
    "failed": {},
    "cut_short": None,
}


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    record = records.make(torch.device("cpu"), [STUDY])
    records.write(record, tmp_path / "new" / "machine.json")
    assert records.read_all(tmp_path / "new") == {"machine": record}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["machine.json"]
    assert record["versions"]["torch"] == torch.__version__
    assert records.find(record, "gradients", "MLP", 4) == STUDY
    assert records.find(record, "gradients", "MLP", 5) is None


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda r: r.pop("date"), "a.json: it lacks date"),
        (lambda r: r["machine"].pop("device"), "a.json, machine: it lacks device"),
        (lambda r: r["studies"][0].pop("task"), "a.json, study 0: it lacks task"),
        (
            lambda r: r["studies"][0]["candidates"]["loop"].pop("iqr"),
            "a.json, study 0, loop: it lacks iqr",
        ),
        (lambda r: r.update(machine=None), "a.json, machine: expected fields device, processor"),
    ],
)
def test_a_record_that_lacks_something_is_refused(damage, sentence, tmp_path):
    record = copy.deepcopy(records.make(torch.device("cpu"), [STUDY]))
    damage(record)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        records.write(record, tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_json_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match=r"^a\.json is not JSON: "):
        records.read(tmp_path / "a.json")


def test_ratios_and_table():
    assert comparison.ratio(STUDY, "loop", "batch gradient") == pytest.approx(5)
    assert comparison.ratio(STUDY, "JAX", "loop") is None
    table = comparison.table(STUDY)
    assert table.loc["loop"].tolist() == [50.0, 1.0, 5.0, "1", "0", "7", ""]
    assert table.loc["JAX", "not measured"] == "absent"
    with pytest.raises(ValueError, match="reference must be one of batch gradient, loop, got 'x'"):
        comparison.table(STUDY, reference="x")


def test_one_round_has_no_spread_and_what_is_missing_is_said():
    once = {**STUDY["candidates"], "loop": {**row(0.05), "rounds": 1}}
    cut = {**STUDY, "candidates": once, "cut_short": "1 of 5 rounds: the budget was spent"}
    assert comparison.table(cut)["spread (ms)"].isna().tolist() == [False, True, True]
    assert comparison.remarks(STUDY) == ["JAX: JAX is not installed: make peers"]
    assert comparison.remarks(cut)[1:] == ["1 of 5 rounds: the budget was spent"]


def test_a_picture_without_its_reference_is_refused():
    with pytest.raises(ValueError, match=r"^other has no 'batch gradient', of which the others"):
        timings.multiples({"one": STUDY, "other": {**STUDY, "candidates": {"loop": row(0.1)}}})


def test_a_large_spread_stands_beside_its_bar():
    disturbed = {**row(0.05), "iqr": 0.04}
    candidates = {**STUDY["candidates"], "loop": disturbed}
    texts = timings.multiples({"one": {**STUDY, "candidates": candidates}}).axes[0].texts
    assert [text.get_text() for text in texts] == ["1", "5 (spread 4)"]


def test_pictures_have_a_bar_for_each_candidate_of_each_run():
    other = {**STUDY, "candidates": {**STUDY["candidates"], "vmap": row(0.02)}}
    figure = timings.multiples({"one": STUDY, "other": other})
    assert isinstance(figure, matplotlib.figure.Figure)
    bars = figure.axes[0].patches
    assert {bar.get_x() for bar in bars} == {1}
    assert sorted(round(1 + bar.get_width(), 6) for bar in bars) == [1, 1, 2, 5, 5]
    curve = timings.growth([STUDY, {**STUDY, "task": {"model": "MLP", "batch_size": 8}}])
    assert [list(line.get_xdata()) for line in curve.axes[0].lines] == [[4, 8], [4, 8]]
