"""Candidates in processes of their own: what they compute, and what is said when they cannot."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers import compare, data, gradients
from helpers.study import candidates, peers, processes
from helpers.study.records import Candidate, Task

CNN, SMALL = Task("SimpleCNN", 3, "random"), Task("MLP", 5, "random")
METHODS = [
    *peers.IN_PROCESS,
    "vmap(grad)",
    "vmap(grad), chunks of 16",
    "vmap(grad), buffers reused",
]


def load(task):
    return candidates.make_model(task), *data.load_batch(task.dataset, task.batch_size)


@pytest.mark.parametrize("name", METHODS)
def test_every_way_is_equal_to_the_loop_by_name(name):
    if why := candidates.absent(Candidate(name), CNN):
        pytest.skip(why)
    model, images, labels = load(CNN)
    expected = gradients.loop_gradients(model, F.cross_entropy, images, labels)
    run = candidates.build("gradients", Candidate(name), model, images, labels)
    for _ in range(2):  # a second run starts anew
        compare.check(run(), expected)


@pytest.mark.skipif(not peers.jax_python(), reason="JAX is not installed: make bench")
def test_jax_computes_the_same_gradients(tmp_path):
    model, images, labels = load(CNN)
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
    compare.check({name: torch.from_numpy(result[name]) for name in expected}, expected)


def test_a_study_has_numbers_reasons_and_the_failed(monkeypatch):
    for name in ("missing", "unknown there"):
        monkeypatch.setitem(candidates.METHODS["gradients"], name, candidates.composition)
    monkeypatch.setattr(peers, "absent", {"missing": "it is not installed"}.get)
    chosen = [Candidate(name) for name in ("batch gradient", "missing", "unknown there")]
    done = processes.run("gradients", SMALL, chosen, rounds=2, min_run_time=0.0)
    assert [(row.candidate.method, row.rounds) for row in done.rows] == [("batch gradient", 2)]
    assert done.rows[0].median > 0
    # The process does not know what this one was told.
    why = {each.candidate.method: (each.absent, each.why.split(":")[0]) for each in done.missing}
    assert why == {"missing": (True, "it is not installed"), "unknown there": (False, "KeyError")}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell a process less")
def test_the_peak_holds_the_result_and_a_process_gives_it_back(monkeypatch):
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"):  # as `make test` sets them
        monkeypatch.delenv(name, raising=False)
    chosen = [Candidate(f"fill {kind} memory") for kind in ("fresh", "owned")]
    task, result = Task("SimpleCNN", 32, "random"), 32 * 1_199_882 * 4
    fresh, owned = processes.run("gradients", task, chosen, rounds=1, min_run_time=0.0).rows
    assert 0.8 * result < fresh.peak < 1.5 * result
    assert fresh.held < 0.2 * result
    assert owned.peak < 0.2 * result
    assert fresh.faults == pytest.approx(result // resource.getpagesize(), rel=0.1)
