"""Records of measurements: read back as written, and refused when something is missing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.study import records, tables
from helpers.study.records import HUGE_PAGES, KEEP_FREED, Candidate, Missing, Row, Study, Task

ROOT = Path(__file__).parents[1]


def row(method, median, iqr=0.001, rounds=3, **settings):
    candidate = Candidate(method, **settings)
    return Row(candidate, median, iqr, rounds, peak=2**20, held=None, faults=7000, first=1.0)


KEPT = row("loop", 0.02, allocator=KEEP_FREED)
STUDY = Study(
    "gradients",
    Task("MLP", 4),
    [row("batch gradient", 0.01), row("loop", 0.05), KEPT],
    [Missing(Candidate("JAX"), absent=True, why="JAX is not installed: make bench")],
)


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    record = records.make(torch.device("cpu"), [STUDY])
    records.write(record, tmp_path / "new" / "machine.json")
    assert records.read_all(tmp_path / "new") == {"machine": record}
    assert record.find("gradients", "MLP", 4) == STUDY
    assert record.find("gradients", "MLP", 5) is None


def test_a_row_is_found_by_its_facts():
    assert STUDY.row("loop", allocator=KEEP_FREED) == KEPT
    assert STUDY.row("loop").median == 0.05
    with pytest.raises(KeyError, match="loop"):
        STUDY.row("loop", compiled=True)
    assert str(Candidate("a", True, HUGE_PAGES)) == "a, compiled, huge pages"


def test_tables():
    table = tables.times(STUDY)
    assert table.index.tolist() == ["batch gradient", "loop", "loop, freed memory kept", "JAX"]
    assert table.loc["loop"].tolist() == pytest.approx([50.0, 1.0, 5.0, ""])
    assert table.loc["JAX", "not measured"] == "absent"
    assert tables.memory(STUDY).loc["loop"].tolist() == ["1", "", "7,000"]
    cut = replace(STUDY, rows=[STUDY.rows[0], replace(STUDY.rows[1], rounds=1)])
    assert tables.times(cut)["spread (ms)"].isna().tolist() == [False, True, True]


def test_a_disturbed_row_is_named_unless_nothing_is_said_of_its_time():
    wild = [row("vmap(grad)", 0.01, iqr=0.0041), row("loop", 0.01, 0.05, allocator=HUGE_PAGES)]
    assert records.disturbed([STUDY, replace(STUDY, rows=wild)]) == [
        "gradients, MLP, B = 4: vmap(grad)"
    ]


def test_no_record_that_is_kept_was_disturbed():
    kept = records.read_all(ROOT / "notebooks" / "measurements")
    assert kept
    assert [records.disturbed(record.studies) for record in kept.values()] == [[]] * len(kept)
