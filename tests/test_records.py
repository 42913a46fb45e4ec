"""Records of measurements: read back as they were written, and set out in tables."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.study import records, tables
from helpers.study.records import HUGE_PAGES, KEEP_FREED, Candidate, Missing, Row, Study, Task


def row(method, median, iqr=0.001, **settings):
    candidate = Candidate(method, **settings)
    return Row(candidate, median, iqr, 3, peak=2**20, held=None, faults=7000, first=1.0)


KEPT = row("loop", 0.02, allocator=KEEP_FREED)
ROWS = [row("batch gradient", 0.01), row("loop", 0.05), KEPT]
ABSENT = Missing(Candidate("JAX"), absent=True, why="JAX is not installed: make bench")
STUDY = Study("gradients", Task("MLP", 4), ROWS, [ABSENT])


def test_a_record_is_read_back_as_it_was_written_and_rows_are_found(tmp_path):
    record = records.make(torch.device("cpu"), [STUDY])
    records.write(record, tmp_path / "new" / "machine.json")
    assert records.read_all(tmp_path / "new") == {"machine": record}
    assert record.find("gradients", "MLP", 4) == STUDY
    assert record.find("gradients", "MLP", 5) is None
    assert STUDY.row("loop", allocator=KEEP_FREED) == KEPT
    with pytest.raises(KeyError, match="loop"):
        STUDY.row("loop", compiled=True)


def test_tables():
    table = tables.times(STUDY)
    assert table.index.tolist() == ["batch gradient", "loop", "loop, freed memory kept", "JAX"]
    assert table.loc["loop"].tolist() == pytest.approx([50.0, 1.0, 5.0, ""])
    assert table.loc["JAX", "not measured"] == "absent"
    assert tables.memory(STUDY).loc["loop"].tolist() == ["1", "", "7,000"]


def test_a_disturbed_row_is_named_and_no_record_that_is_kept_has_one():
    wild = [row("vmap(grad)", 0.01, iqr=0.0041), row("loop", 0.01, 0.05, allocator=HUGE_PAGES)]
    named = records.disturbed([STUDY, replace(STUDY, rows=wild)])
    assert named == ["gradients, MLP, B = 4: vmap(grad)"]
    kept = records.read_all(Path(__file__).parents[1] / "notebooks" / "measurements")
    assert [records.disturbed(record.studies) for record in kept.values()] == [[]]
