"""Candidates in processes of their own: what they compute, and what is said when they cannot."""

import resource

import pytest
import torch
import torch.nn.functional as F

from helpers import benchmark, compare, data, gradients, jacobians, memory
from helpers.study import candidates, peers, processes, tables
from helpers.study.facts import KEEP_FREED, Candidate, Task

CNN, SMALL = Task("SimpleCNN", 3, "random"), Task("MLP", 5, "random")
TASKS = [CNN, SMALL, Task("transformer", 3, "random")]
METHODS = [
    name
    for name in candidates.METHODS["gradients"]
    if not name.startswith(("batch", "fill", "JAX"))
]


def load(task):
    return candidates.make_model(task), *data.load_batch(task.dataset, task.batch_size)


@pytest.mark.parametrize("task", TASKS, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_every_way_is_equal_to_the_loop_by_name(name, task):
    candidate = Candidate(name)
    if why := candidates.absent(candidate):
        pytest.skip(why)
    if task.model == "transformer" and name == "BackPACK":
        pytest.skip("BackPACK has no BatchGrad for LayerNorm")
    model, images, labels = load(task)
    expected = gradients.loop_gradients(model, F.cross_entropy, images, labels)
    compare.check(candidates.build("gradients", candidate, model, images, labels)(), expected)


@pytest.mark.parametrize("name", ["vmap(jacrev)", "func_jacobians, buffer reused"])
def test_jacobians_are_equal_to_the_double_loop(name):
    model, images, labels = load(SMALL)
    got = candidates.build("jacobians", Candidate(name), model, images, labels)()
    if isinstance(got, torch.Tensor):
        got = jacobians.unflatten_jacobians(got, model)
    loop = jacobians.unflatten_jacobians(jacobians.loop_jacobians(model, images), model)
    compare.check(got, loop, batch_dims=2)


def test_jax_computes_the_same_gradients_in_its_process(tmp_path):
    import numpy as np

    jax = Candidate("JAX jit(vmap(grad))")
    if why := candidates.absent(jax):
        pytest.skip(why)
    for task in TASKS:
        with processes.started("gradients", task, [jax]) as (running, missing):
            assert missing == []
            running[jax].ask("save", path=str(tmp_path / "result.npz"))
        result = np.load(tmp_path / "result.npz")
        model, images, labels = load(task)
        expected = gradients.loop_gradients(model, F.cross_entropy, images, labels)
        compare.check({name: torch.from_numpy(result[name]) for name in expected}, expected)


def test_a_study_has_numbers_reasons_and_the_failed(monkeypatch):
    for name in ("missing", "unknown there"):
        monkeypatch.setitem(candidates.METHODS["gradients"], name, candidates.composition)
    said = {"missing": "it is not installed"}
    monkeypatch.setattr(peers, "absent", said.get)
    names = ["batch gradient", "vmap(grad)", "missing", "unknown there"]
    chosen = list(map(Candidate, names))
    done = processes.run("gradients", SMALL, chosen, rounds=2, min_run_time=0.0)
    assert [row.candidate for row in done.rows] == chosen[:2]
    # The process does not know what this one was told.
    assert [(each.candidate.method, each.absent, each.why) for each in done.missing] == [
        ("missing", True, "it is not installed"),
        ("unknown there", False, "KeyError: 'unknown there'"),
    ]
    for row in done.rows:
        assert row.rounds == 2
        assert row.median > 0
        assert row.faults is not None
    table = tables.times(done)
    assert table.index.tolist() == names
    assert table["not measured"].tolist() == ["", "", "absent", "failed"]
    assert table["times batch gradient"].iloc[0] == 1.0


def test_the_peak_holds_the_result_and_a_process_gives_it_back():
    fresh, owned = (Candidate(f"fill {kind} memory") for kind in ("fresh", "owned"))
    kept = Candidate("fill fresh memory", allocator=KEEP_FREED)
    task = Task("SimpleCNN", 32, "random")
    with processes.started("gradients", task, [fresh, owned, kept]) as (running, _):
        result = 32 * 1_199_882 * 4
        peak = running[fresh].weight["peak"]
        if peak is None:
            pytest.skip("this system does not tell a process its high-water mark")
        assert 0.8 * result < peak < 1.5 * result
        assert running[owned].weight["peak"] < 0.2 * result
        pages = result // resource.getpagesize()
        assert running[fresh].ask("faults") == pytest.approx(pages, rel=0.1)
        # Not none: some hundreds were seen at times, which the process makes beside the fill.
        assert running[owned].ask("faults") < pages / 10
        with memory.keep_freed() as can_keep:
            pass
        if can_keep:
            assert running[kept].ask("faults") < pages / 10
            assert running[kept].weight["held"] > 0.8 * result > running[fresh].weight["held"]


def test_a_process_that_dies_says_so_and_the_others_stay(monkeypatch):
    good, dying = Candidate("batch gradient"), Candidate("vmap(grad)")
    with processes.started("gradients", SMALL, [good, dying]) as (running, _):
        running[dying]._process.kill()
        times = benchmark.measure(running, rounds=1, min_run_time=0.0)
        assert list(times) == [good]
        assert times.failed[dying].startswith("RuntimeError: the process of vmap(grad) ended with")


def test_after_an_interrupt_no_answer_is_taken_for_the_next(monkeypatch):
    candidate = Candidate("batch gradient")
    with processes.started("gradients", SMALL, [candidate]) as (running, _):
        process = running[candidate]

        def interrupt() -> str:
            raise KeyboardInterrupt

        read = process._process.stdout.readline
        monkeypatch.setattr(process._process.stdout, "readline", interrupt, raising=False)
        with pytest.raises(KeyboardInterrupt):
            process.timeit(2)
        monkeypatch.setattr(process._process.stdout, "readline", read)
        with pytest.raises(RuntimeError, match="the process of batch gradient ended"):
            process.ask("faults")
