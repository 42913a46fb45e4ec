"""Candidates in processes of their own: what they compute, and what is said when they cannot."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers import gradients
from helpers.study import candidates, peers, processes
from helpers.study.candidates import KEEP_FREED, Candidate, Task
from tests.support.oracle import assert_equal

CNN, SMALL = Task("SimpleCNN", 3, dataset="random"), Task("MLP", 5, dataset="random")
METHODS = ["vmap(grad)", "vmap(grad), chunks of 16", "buffers reused", *peers.IN_PROCESS]


@pytest.mark.parametrize("name", METHODS)
def test_every_way_is_equal_to_the_loop_by_name(name):
    if why := Candidate(name).absent():
        pytest.skip(why)
    model, *batch = CNN.load()
    run = Candidate(name).build(model, *batch)
    for _ in range(2):  # a second run starts anew
        assert_equal(run(), gradients.loop_gradients(model, F.cross_entropy, *batch), 1e-5)


@pytest.mark.skipif(not peers.jax_python(), reason="JAX is not installed: make bench")
@pytest.mark.parametrize("task", [CNN, SMALL])
def test_jax_computes_the_same_gradients(tmp_path, task):
    model, images, labels = task.load()
    arrays = {**model.state_dict(), "images": images, "labels": labels}
    np.savez(tmp_path / "inputs.npz", **{name: each.numpy() for name, each in arrays.items()})
    code = (
        "import sys, numpy; from helpers.study import jax_worker;"
        "run = jax_worker.build('JAX jit(vmap(grad))', sys.argv[1]);"
        "numpy.savez(sys.argv[2], **run())"
    )
    files = [str(tmp_path / name) for name in ("inputs.npz", "result.npz")]
    subprocess.run([peers.jax_python(), "-c", code, *files], cwd=processes.ROOT, check=True)
    expected = gradients.loop_gradients(model, F.cross_entropy, images, labels)
    result = np.load(tmp_path / "result.npz")
    named = {name: torch.from_numpy(result[name]) for name in expected}
    assert_equal(named, expected, 1e-5)


def test_a_study_has_numbers_reasons_and_the_failed(monkeypatch):
    for name in ("missing", "unknown there"):
        monkeypatch.setitem(candidates.METHODS, name, candidates.METHODS["loop"])
    monkeypatch.setattr(peers, "absent", {"missing": "it is not installed"}.get)
    chosen = [Candidate(name) for name in ("batch gradient", "missing", "unknown there")]
    study = processes.run(SMALL, chosen, rounds=2, min_run_time=0.0)
    (row,) = study["rows"]
    assert (row["method"], row["rounds"]) == ("batch gradient", 2)
    assert 0 < row["median"] < row["first"]
    # The process does not know what this one was told.
    why = {name: reason.split("'")[0] for name, reason in study["missing"].items()}
    assert why == {"missing": "it is not installed", "unknown there": "failed: KeyError: "}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell a process less")
def test_memory_is_given_back_unless_it_is_kept(monkeypatch):
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"):  # as `make test` sets them
        monkeypatch.delenv(name, raising=False)
    chosen = [Candidate(f"fill {kind} memory") for kind in ("fresh", "owned")]
    chosen.append(chosen[0]._replace(allocator=KEEP_FREED))
    task, result = Task("SimpleCNN", 32, dataset="random"), 32 * 1_199_882 * 4
    rows = processes.run(task, chosen, rounds=1, min_run_time=0.0)["rows"]
    held = [row["held"] / result for row in rows]
    assert [share > 0.8 for share in held] == [False, False, True]
    assert [share > 0.2 for share in held] == [False, False, True]
    pages = [row["faults"] * resource.getpagesize() / result for row in rows]
    assert [share > 0.1 for share in pages] == [True, False, False]
    assert pages[0] == pytest.approx(1, rel=0.1)
