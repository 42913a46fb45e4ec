"""The command line of the measurement: what it writes, and what it does not let pass as one."""

import json

import torch

from helpers.study import processes
from helpers.study.candidates import CANDIDATES, DEFAULT, HUGE_PAGES, Candidate
from helpers.tooling import bench
from tests.support.samples import ROOT


def row(method, iqr, **settings):
    return Candidate(method, **settings)._asdict() | {"median": 0.01, "iqr": iqr, "faults": None}


def test_the_record_holds_the_plan_unless_it_was_disturbed_or_ended(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [row("batch gradient", 0.001), row("vmap(grad)", 0.008, allocator=HUGE_PAGES)]
    rest = {"rows": rows, "missing": {"BackPACK": "it is not installed"}}

    def measured(task, chosen):
        return task._asdict() | rest

    def interrupted_at_the_second(task, chosen):
        if task.model != bench.NETWORKS[0]:
            raise KeyboardInterrupt
        return task._asdict() | rest

    monkeypatch.setattr(processes, "run", measured)
    assert bench.main(["--device", "cpu"]) == 0
    record = tmp_path / "build" / "cpu" / "bench.json"
    studies = json.loads(record.read_text("utf-8"))["studies"]
    assert [study["model"] for study in studies] == list(bench.NETWORKS)
    assert studies[0]["rows"] == rows
    assert "BackPACK: it is not installed" in capsys.readouterr().out
    assert bench.main(["--device", "abacus"]) == 2
    rows.append(row("loop", 0.005))
    assert bench.main(["--device", "cpu"]) == 1
    assert "SimpleCNN: loop\n" in capsys.readouterr().err
    monkeypatch.setattr(processes, "run", interrupted_at_the_second)
    assert bench.main(["--device", "cpu"]) == 130
    (study,) = json.loads(record.read_text("utf-8"))["studies"]
    assert study["rows"] == rows


def test_no_record_that_is_kept_was_disturbed():
    for path in (ROOT / "notebooks" / "measurements").glob("*.json"):
        assert not any(map(bench.disturbed, json.loads(path.read_text("utf-8"))["studies"]))


def test_a_gpu_is_not_measured_with_allocators_of_the_cpu():
    left = bench.on(torch.device("cuda:0"), CANDIDATES)
    assert Candidate("vmap(grad)", compiled=True) in left
    assert {candidate.allocator for candidate in left} == {DEFAULT}
    assert not [candidate for candidate in left if "JAX" in candidate.method]
