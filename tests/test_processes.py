"""Candidates in processes of their own: what they compute, and what is said when they cannot."""

import re
import resource

import pytest
import torch
import torch.nn.functional as F

from helpers import benchmark, compare, gradients, jacobians
from helpers.study import candidates, comparison, processes
from helpers.study.candidates import Candidate, Task

CNN, SMALL = Task("SimpleCNN", 3, "random"), Task("MLP", 5, "random")
MATERIALISED = [
    name
    for name in candidates.GRADIENTS
    if not name.startswith(("batch", "fill", "JAX")) and "compiled" not in name
]


@pytest.mark.parametrize("task", [CNN, SMALL, Task("transformer", 3, "random")], ids=str)
@pytest.mark.parametrize("name", MATERIALISED)
def test_every_way_is_equal_to_the_loop_by_name(name, task):
    candidate = candidates.GRADIENTS[name]
    if why := candidate.absent():
        pytest.skip(why)
    if task.model == "transformer" and name.startswith("BackPACK"):
        pytest.skip("BackPACK has no BatchGrad for LayerNorm")
    model, images, labels = task.load()
    expected = gradients.loop_gradients(model, F.cross_entropy, images, labels)
    compare.check(candidate.build(model, images, labels)(), expected)


@pytest.mark.parametrize("name", ["vmap(jacrev)", "func_jacobians, buffer reused"])
def test_jacobians_are_equal_to_the_double_loop(name):
    model, images, labels = SMALL.load()
    got = candidates.JACOBIANS[name].build(model, images, labels)()
    if isinstance(got, torch.Tensor):
        got = jacobians.unflatten_jacobians(got, model)
    loop = jacobians.unflatten_jacobians(jacobians.loop_jacobians(model, images), model)
    compare.check(got, loop, batch_dims=2)


def test_jax_computes_the_same_gradients_in_its_process():
    name = "JAX jit(vmap(grad))"
    if why := candidates.GRADIENTS[name].absent():
        pytest.skip(why)
    with processes.started("gradients", [name]) as running:
        for task in (CNN, SMALL, Task("transformer", 3, "random")):
            running.build(task)
            assert running.failed == {}
            expected = gradients.loop_gradients(task.load()[0], F.cross_entropy, *task.load()[1:])
            compare.check(running[name].result(), expected)


def test_a_study_has_numbers_reasons_and_the_failed(monkeypatch):
    missing = Candidate(candidates.composition, absent=lambda: "it is not installed")
    monkeypatch.setitem(candidates.GRADIENTS, "missing", missing)
    monkeypatch.setitem(candidates.GRADIENTS, "unknown there", Candidate(candidates.composition))
    names = ["batch gradient", "vmap(grad)", "missing", "unknown there"]
    done = comparison.run("gradients", SMALL, names, rounds=2, min_run_time=0.0)
    assert list(done["candidates"]) == ["batch gradient", "vmap(grad)"]
    assert done["absent"] == {"missing": "it is not installed"}
    # The process does not know what this one was told.
    assert done["failed"] == {"unknown there": "KeyError: 'unknown there'"}
    for row in done["candidates"].values():
        assert row["rounds"] == 2
        assert row["median"] > 0
    table = comparison.table(done)
    assert table.index.tolist() == names
    assert table["not measured"].tolist() == ["", "", "absent", "failed"]
    assert table["times batch gradient"].iloc[0] == 1.0


def test_the_peak_holds_the_result_and_a_process_gives_it_back():
    with processes.started("gradients", ["fill fresh memory", "fill owned memory"]) as running:
        running.build(Task("SimpleCNN", 32, "random"))
        result = 32 * 1_199_882 * 4
        peak = running["fill fresh memory"].weight["peak"]
        if peak is None:
            pytest.skip("this system does not tell a process its high-water mark")
        assert 0.8 * result < peak < 1.5 * result
        assert running["fill owned memory"].weight["peak"] < 0.2 * result
        pages = result // resource.getpagesize()
        assert running["fill fresh memory"].faults() == pytest.approx(pages, rel=0.1)
        assert running["fill owned memory"].faults() < pages / 100


def test_a_process_that_dies_says_so_and_the_others_stay():
    with processes.started("gradients", ["batch gradient", "vmap(grad)"]) as running:
        running.build(SMALL)
        running["vmap(grad)"]._process.kill()
        times = benchmark.measure(running, rounds=1, min_run_time=0.0)
        assert list(times) == ["batch gradient"]
        assert re.match("RuntimeError: the process of 'vmap", times.failed["vmap(grad)"])


def test_an_answer_to_an_interrupted_question_is_not_taken_for_the_next():
    with processes.started("gradients", ["batch gradient"]) as running:
        running.build(SMALL)
        process = running["batch gradient"]
        process._requests += 1
        asked = f'{{"number": {process._requests}, "name": "save", "path": "/nowhere/at/all"}}'
        print(asked, file=process._process.stdin, flush=True)  # and nobody waits for the answer
        assert process.timeit(2).median > 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Task("CNN").load(), "model must be one of SimpleCNN, MLP, transformer, got 'CNN'"),
        (lambda: processes.started("x").__enter__(), "group must be one of gradients, jacobians"),
        (
            lambda: processes.started("forward", ["loop"]).__enter__(),
            "candidate must be one of vmap(jacrev), vmap(jacfwd), got 'loop'",
        ),
    ],
)
def test_what_is_not_there_is_refused(call, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        call()
