"""Candidates in processes of their own: what they compute, and what is said when they cannot."""

import os
import resource
import signal
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from helpers import benchmark, compare, data, gradients, jacobians, memory
from helpers.study import candidates, peers, processes, tables
from helpers.study.records import KEEP_FREED, Candidate, Task

SMALL = Task("MLP", 5, "random")
TASKS = [Task("SimpleCNN", 3, "random"), SMALL, Task("transformer", 3, "random")]
METHODS = [
    name
    for name in candidates.METHODS["gradients"]
    if not name.startswith(("batch", "fill", "loop", "JAX"))
]


def load(task):
    return candidates.make_model(task), *data.load_batch(task.dataset, task.batch_size)


@pytest.mark.parametrize("task", TASKS, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_every_way_is_equal_to_the_loop_by_name(name, task):
    candidate = Candidate(name)
    if why := candidates.absent(candidate, task):
        pytest.skip(why)
    if task.model == "transformer" and name == "BackPACK":
        pytest.skip("BackPACK has no BatchGrad for LayerNorm")
    model, images, labels = load(task)
    expected = gradients.loop_gradients(model, F.cross_entropy, images, labels)
    compare.check(candidates.build("gradients", candidate, model, images, labels)(), expected)


def test_jacobians_are_equal_to_the_double_loop():
    model, images, labels = load(SMALL)
    got = candidates.build("jacobians", Candidate("vmap(jacrev)"), model, images, labels)()
    loop = jacobians.unflatten_jacobians(jacobians.loop_jacobians(model, images), model)
    compare.check(got, loop, batch_dims=2)


@pytest.mark.skipif(not peers.jax_python(), reason="JAX is not installed: make bench")
def test_jax_computes_the_same_gradients(tmp_path):
    import numpy as np

    model, images, labels = load(TASKS[0])
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
    names = ["batch gradient", "vmap(grad)", "missing", "unknown there"]
    chosen = list(map(Candidate, names))
    done = processes.run("gradients", SMALL, chosen, rounds=2, min_run_time=0.0)
    assert [row.candidate for row in done.rows] == chosen[:2]
    # The process does not know what this one was told.
    assert [(each.candidate.method, each.absent, each.why) for each in done.missing] == [
        ("missing", True, "it is not installed"),
        ("unknown there", False, "KeyError: 'unknown there'"),
    ]
    assert all(row.rounds == 2 and row.median > 0 for row in done.rows)
    assert tables.times(done)["not measured"].tolist() == ["", "", "absent", "failed"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell a process less")
def test_the_peak_holds_the_result_and_a_process_gives_it_back(monkeypatch):
    for name in ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"):  # as `make test` sets them
        monkeypatch.delenv(name, raising=False)
    names = [Candidate(f"fill {kind} memory") for kind in ("fresh", "owned")]
    chosen = [*names, Candidate(names[0].method, allocator=KEEP_FREED)]
    task = Task("SimpleCNN", 32, "random")
    result = 32 * 1_199_882 * 4
    pages = result // resource.getpagesize()
    fresh, owned, kept = processes.run("gradients", task, chosen, rounds=1, min_run_time=0.0).rows
    assert 0.8 * result < fresh.peak < 1.5 * result
    assert owned.peak < 0.2 * result
    assert fresh.faults == pytest.approx(pages, rel=0.1)
    # Not none: some hundreds were seen at times, which the process makes beside the fill.
    assert owned.faults < pages / 10
    with memory.keep_freed() as can_keep:
        pass
    if can_keep:
        assert kept.faults < pages / 10
        assert kept.held > 0.8 * result > fresh.held


def test_a_process_that_dies_says_so_and_the_others_stay(tmp_path):
    good, dying = Candidate("batch gradient"), Candidate("vmap(grad)")
    running = {each: processes.Process(each, str(tmp_path)) for each in (good, dying)}
    for process in running.values():
        process.start("gradients", SMALL, [each.numpy() for each in load(SMALL)[1:]])
    os.kill(running[dying].pool.submit(os.getpid).result(), signal.SIGKILL)
    times = benchmark.measure(running, rounds=1, min_run_time=0.0)
    assert list(times) == [good]
    assert times.failed[dying].startswith("BrokenProcessPool")
    running[good].pool.shutdown()
