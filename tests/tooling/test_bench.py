"""The command line of the measurement: what it writes, and what it does not let pass as one."""

from dataclasses import replace

import pytest
import torch

from helpers.study import candidates, processes, records
from helpers.study.records import DEFAULT, Candidate, Row, Study
from helpers.tooling import bench

CALM = Row(Candidate("batch gradient"), 0.01, 0.001, 5, 0, 0, 0, 0.1)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Measure nothing: every comparison has this row."""
    monkeypatch.chdir(tmp_path)
    rows = [CALM]
    monkeypatch.setattr(processes, "run", lambda group, task, _: Study(group, task, tuple(rows)))
    return rows


def test_the_record_holds_the_plan_unless_it_was_disturbed(measured, tmp_path, capsys):
    assert bench.main(["--device", "cpu"]) == 0
    record = records.read(tmp_path / "build" / "cpu" / "bench.json")
    planned = [(study.group, study.task.model, study.task.batch_size) for study in record.studies]
    assert planned == list(bench.PLAN)
    assert bench.main(["--device", "abacus"]) == 2
    measured.append(replace(CALM, candidate=Candidate("loop"), iqr=0.005))
    assert bench.main(["--device", "cpu"]) == 1
    assert "gradients, SimpleCNN, B = 64: loop" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_finished(measured, monkeypatch, tmp_path):
    run, cut_short = processes.run, "2 of 5 rounds: it was interrupted"
    monkeypatch.setattr(processes, "run", lambda *a: replace(run(*a), cut_short=cut_short))
    assert bench.main(["--device", "cpu"]) == 130
    (study,) = records.read(tmp_path / "build" / "cpu" / "bench.json").studies
    assert study.cut_short == cut_short


def test_a_gpu_is_not_measured_with_allocators_of_the_cpu():
    left = bench.on(torch.device("cuda:0"), candidates.of_group("gradients"))
    assert Candidate("vmap(grad)", compiled=True) in left
    assert {candidate.allocator for candidate in left} == {DEFAULT}
    assert not [candidate for candidate in left if "JAX" in candidate.method]
