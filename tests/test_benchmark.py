"""What `helpers.benchmark` computes; never how fast anything is."""

import pytest
import torch
from torch.utils.benchmark import Measurement, TaskSpec

from helpers import benchmark


def measured(*seconds: float, runs: int = 1) -> Measurement:
    times = [runs * second for second in seconds]
    return Measurement(runs, times, TaskSpec(stmt="candidate()", setup=""))


def test_candidates_take_turns_each_for_the_time_asked_for():
    asked = []

    class Timed(float):  # takes so many seconds a run
        def timeit(self, number: int) -> Measurement:
            asked.append((self, number))
            return measured(self, runs=number)

    times = benchmark.measure({"a": Timed(0.01), "b": Timed(0.5)}, rounds=3, min_run_time=0.1)
    assert asked == [(0.01, 1), (0.5, 1), *[(0.01, 10), (0.5, 1)] * 3]
    assert times["a"].times == pytest.approx([0.01] * 3), "rounds are merged"
    with pytest.raises(ValueError, match="1 round, got 1 and 0"):
        benchmark.measure({"a": Timed(0.01)}, rounds=0)


def test_the_table_of_times():
    measurements = {"loop": measured(0.040, 0.041, 0.042, 0.080), "vmap": measured(0.010, 0.010)}
    table = benchmark.table(measurements, reference="loop")
    assert table.columns.tolist() == ["median (ms)", "spread (ms)", "times loop"]
    # The quartiles of the first are 40.75 and 51.5.
    assert table.T.to_dict("list") == {"loop": [41.5, 10.75, 1.0], "vmap": [10.0, 0.0, 0.24]}


KILO = torch.ones(1000)  # 4,000 bytes


@pytest.mark.parametrize(
    ("run", "peak", "kept"),
    [
        (lambda: KILO.reshape(10, 100).T, 0, 0),
        (lambda: KILO.double() + 1, 16000, 8000),
        (lambda: torch.ones(1).expand(1000), 4, 4),
        (lambda: [(KILO + 1) is None for _ in range(5)], 4000, 0),
        (lambda: {"a": list((KILO + 1).split(500))}, 4000, 4000),
    ],
)
def test_memory_counts_what_is_made_and_what_stays(run, peak, kept):
    assert benchmark.memory(run) == benchmark.Memory(peak, kept)


def test_flops_are_those_of_the_matrix_products():
    weight, rows = torch.ones(3, 5), torch.ones(8, 5)
    assert benchmark.flops(lambda: rows @ weight.T + 1) == 2 * 8 * 5 * 3
    slope = torch.func.grad(lambda x: (weight @ x).sum())
    assert benchmark.flops(lambda: torch.func.vmap(slope)(rows)) == 2 * (2 * 8 * 5 * 3)
    leaf, layer = rows.clone().requires_grad_(), torch.nn.Linear(5, 3)
    # At a leaf that requires a gradient, FlopCounterMode raises.
    assert benchmark.flops(lambda: layer(leaf).sum().backward(inputs=[leaf])) == 2 * 2 * 8 * 5 * 3
