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
    why = Candidate(name).absent()
    if why:
        pytest.skip(why)
    model, images, labels = CNN.load()
    expected = gradients.loop_gradients(model, F.cross_entropy, images, labels)
    run = Candidate(name).build(model, images, labels)
    for _ in range(2):  # a second run starts anew
        assert_equal(run(), expected, 1e-5)


BY_JAX = """
import sys
import numpy
from helpers.study import jax_worker
run = jax_worker.build("JAX jit(vmap(grad))", sys.argv[1])
numpy.savez(sys.argv[2], **run())
"""


@pytest.mark.skipif(not peers.jax_python(), reason="JAX is not installed: make bench")
@pytest.mark.parametrize("task", [CNN, SMALL])
def test_jax_computes_the_same_gradients(tmp_path, task):
    model, images, labels = task.load()
    arrays = {"images": images.numpy(), "labels": labels.numpy()}
    for name, each in model.state_dict().items():
        arrays[name] = each.numpy()
    inputs, outputs = tmp_path / "inputs.npz", tmp_path / "result.npz"
    np.savez(inputs, **arrays)
    command = [peers.jax_python(), "-c", BY_JAX, str(inputs), str(outputs)]
    subprocess.run(command, cwd=processes.ROOT, check=True)
    result = np.load(outputs)
    expected = gradients.loop_gradients(model, F.cross_entropy, images, labels)
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
    assert study["missing"].keys() == {"missing", "unknown there"}
    assert study["missing"]["missing"] == "it is not installed"
    # The process does not know what this one was told.
    assert study["missing"]["unknown there"].startswith("failed: KeyError: ")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell a process less")
def test_memory_is_given_back_unless_it_is_kept(monkeypatch):
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"):  # as `make test` sets them
        monkeypatch.delenv(name, raising=False)
    fresh, owned = Candidate("fill fresh memory"), Candidate("fill owned memory")
    kept = fresh._replace(allocator=KEEP_FREED)
    task = Task("SimpleCNN", 32, dataset="random")
    size = 32 * 1_199_882 * 4  # bytes of its gradients
    study = processes.run(task, [fresh, owned, kept], rounds=1, min_run_time=0.0)
    fresh, owned, kept = study["rows"]
    # What a process holds after a call, as a share of the gradients.
    assert fresh["held"] <= 0.2 * size
    assert owned["held"] <= 0.2 * size
    assert kept["held"] > 0.8 * size
    # What the system has to hand out anew in each call.
    page = resource.getpagesize()
    assert fresh["faults"] * page == pytest.approx(size, rel=0.1)
    assert owned["faults"] * page <= 0.1 * size
    assert kept["faults"] * page <= 0.1 * size
