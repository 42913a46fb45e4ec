"""What a call leaves of the process and the parameters, and whose an error is: ours, or not."""

import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import debug_unwrap

from helpers import benchmark, gradients, jacobians, norms
from helpers.layers import linear, recorder
from helpers.transforms import batches
from helpers.transforms.fallback import FallbackWarning
from tests.support import zoo
from tests.support.oracle import TOLERANCE, assert_equal, oracle, refused
from tests.support.ways import LOOP, WAYS
from tests.support.zoo import Apply, squared

pytestmark = pytest.mark.filterwarnings("ignore")
met = threading.local()


def functions() -> tuple[object, ...]:
    return torch.compile, torch.cond, torch.jit.ScriptFunction.__call__, warnings.showwarning


def switches() -> tuple[object, ...]:
    stance = sys.modules["torch._dynamo.eval_frame"]._stance.stance
    return stance, torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled


BODIES = [
    lambda: nn.LSTM(4, 4, batch_first=True),
    lambda: nn.GRU(4, 4, batch_first=True),
    lambda: nn.Sequential(
        *(nn.Unflatten(1, (1, 4)), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()),
        nn.Linear(16, 4),
    ),
]


def meeting(self: Apply, inputs: Tensor) -> Tensor:
    """Wait, in the first forward of each call, for those of the other threads."""
    if met.waiting:
        met.waiting = False
        self.meet[0](10)
    assert functions() == self.was
    outputs = self.body(inputs)
    return outputs[0][:, -1] if isinstance(outputs, tuple) else outputs


def test_calls_in_threads_do_not_notice_each_other():
    data = torch.randn(3, 4, 4)
    args = squared, data, torch.randn(3, 4)
    ways = [
        lambda model: gradients.func_gradients(model, *args),
        lambda model: {"": norms.gradient_norms(model, *args)},
        lambda model: {"": jacobians.func_jacobians(model, data)},
    ]

    def models(meet: threading.Barrier) -> list[list[nn.Module]]:
        torch.manual_seed(0)
        own = {"meet": [meet.wait], "was": functions()}
        made = lambda kind: Apply(meeting, body=BODIES[kind % 3](), **own)  # noqa: E731
        return [[made(i + j) for j in range(10)] for i in range(4)]

    def calls(models: list[nn.Module]) -> list[dict[str, Tensor]]:
        results = []
        for turn, model in enumerate(models):
            met.waiting = True
            results.append(ways[turn % 3](model))
        return results

    compiled = []
    note = lambda graph, inputs: compiled.append(graph) or graph.forward  # noqa: E731

    def compiling(size: int) -> None:
        function = torch.compile(lambda x: x.sin() * 2, backend=note, dynamic=False)
        assert torch.equal(function(torch.ones(size)), torch.ones(size).sin() * 2)

    compiling(1)
    alone = [*map(calls, models(threading.Barrier(1)))]
    before, several, size = (functions(), switches()), models(threading.Barrier(4)), 1
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(calls, each) for each in several]
        while not all(each.done() for each in running):
            compiling(size := min(size + 1, 6))
        together = [each.result() for each in running]
    assert (functions(), switches()) == before
    for got, expected in zip(chain(*together), chain(*alone), strict=True):
        assert_equal(got, expected, 1e-6)
    compiling(7)
    assert len(compiled) == size + 1


CALLERS = {name: WAYS[name].compute for name in ("func", "norms", "func, out", "func Jacobians")}
CALLERS["loop, wrt"] = lambda case, _: gradients.loop_gradients(*case.args, wrt=["fc.bias"])


def one_linear(forward=lambda m, x: m.fc(x)) -> zoo.Case:
    case = zoo.make("linear")
    case.model = Apply(forward, fc=case.model)
    return case


def planted(module: object, right: object, error: Exception) -> object:
    """Make a function of helpers fail the first time, so that a slower way would get through."""
    values = {**vars(module), "right": right, "errors": [error]}
    code = "def planted(*a, **k):\n if errors: raise errors.pop()\n return right(*a, **k)"
    exec(compile(code, module.__file__, "exec"), values)
    return values["planted"]


BUGS = [(caller, batches, vars(batches), "call") for caller in CALLERS]
BUGS += [("norms", recorder, vars(recorder), name) for name in ("_passed_on", "_check_unmet")]
BUGS += [("norms", linear, recorder.LAYER_RULES, F.linear)]


@pytest.mark.parametrize("error", [NameError, KeyError, AssertionError])
@pytest.mark.parametrize(("caller", "module", "functions", "name"), BUGS)
def test_a_bug_of_helpers_is_raised(caller, module, functions, name, error, monkeypatch):
    case, bug = one_linear(lambda m, x: F.linear(x, m.fc.weight)), error("planted")  # without bias
    monkeypatch.setitem(functions, name, planted(module, functions[name], bug))
    with warnings.catch_warnings(action="error"), pytest.raises(error) as raised:
        CALLERS[caller](case, None)
    assert raised.value is bug


@pytest.mark.parametrize("way", ["norms", LOOP, "func", "func, out", "func Jacobians"])
def test_parameters_are_not_copied(way):
    """Norms of trained ones are small, and so is all that is computed beside frozen ones."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)), nn.Linear(256, 2))
    model[:-1].requires_grad_(way == "norms")
    case = zoo.Case(model, torch.randn(2, 256), torch.randn(2, 2), squared)
    assert benchmark.memory(lambda: WAYS[way].compute(case, None)).peak < 2 * 256 * 256 * 4


def times(self: Apply, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        self.fc.weight.mul_(0.5)
    return self.fc(inputs)


def rebound(self: Apply, inputs: Tensor) -> Tensor:
    self.fc.weight.data = self.fc.weight.detach() * 0.5
    return self.fc(inputs)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("way", [LOOP, "func", "norms"])
@pytest.mark.parametrize("write", [times, rebound])
def test_a_write_into_a_parameter_stays_and_is_warned_of(write, way, frozen):
    case = one_linear(write)
    weight = case.model.fc.weight.requires_grad_(not frozen)
    start = weight.detach().clone()
    first = oracle(case.model, squared, *(b[:1] for b in case.batch))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        got = WAYS[way].compute(case, None)
    assert sum("fc.weight" in str(each.message) for each in heard) == 1
    assert case.model.fc.weight is weight
    writes = (start / weight.detach()).log2()
    assert torch.equal(writes, writes[:1, :1].expand(2, 3))
    assert writes[0, 0] == 3 if way == LOOP else writes[0, 0] >= 1
    if way != "norms":
        assert_equal({name: rows[:1] for name, rows in got.items()}, first, TOLERANCE)


def branching(self: Apply, inputs: Tensor) -> Tensor:
    return self.fc(inputs) * (2 if inputs.sum().item() > 0 else 1)


@pytest.mark.parametrize("caller", CALLERS)
def test_an_error_that_the_caller_handles_keeps_its_traceback(caller):
    with suppress(KeyError):
        try:
            {}["of the caller"]
        except KeyError as error:
            handled = error
            CALLERS[caller](one_linear(branching), None)
            raise
    assert handled.__traceback__.tb_frame.f_code.co_filename == __file__


@pytest.mark.parametrize("forward", [branching, lambda m, x: m.fc(x)])
def test_what_another_thread_draws_is_not_drawn_again(forward):
    """Where a model may draw nothing, no stream is set back."""
    drawn = []

    def draw() -> None:
        drawn.extend([random.random(), torch.rand(()).item()])

    def meanwhile(self: Apply, inputs: Tensor) -> Tensor:
        if not drawn:
            pool.submit(draw).result()
        return forward(self, inputs)

    with ThreadPoolExecutor(1) as pool:
        gradients.func_gradients(*one_linear(meanwhile).args)
        drawn.clear()
        norms.gradient_norms(*one_linear(meanwhile).args)
    draw()
    assert len({*drawn}) == 4


GENERATORS = {
    "dropout": (nn.Dropout, lambda layer: layer(torch.arange(-40.0, 0).double().exp2()).sum()),
    "torch": (lambda: torch.Generator().manual_seed(0), lambda g: torch.rand((), generator=g)),
    "numpy": (lambda: np.random.default_rng(0), lambda g: g.random()),
    "numpy, legacy": (lambda: np.random.RandomState(0), lambda g: g.rand()),
    "python": (lambda: random.Random(0), lambda g: g.random()),
    "numpy, global": (lambda: None, lambda _: np.random.rand()),  # noqa: NPY002
    "python, global": (lambda: None, lambda _: random.random()),
}


@pytest.mark.parametrize("forward", [branching, lambda m, x: m.fc(x)])
@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_of_the_model_are_streams(kind, forward):
    make, draw = GENERATORS[kind]
    case = one_linear(lambda m, x: forward(m, x) * draw(m.own))
    case.data, case.targets = torch.ones(5, 3).double(), torch.zeros(5, 2).double()
    for compute in (gradients.func_gradients, norms.gradient_norms):
        for randomness, count in (("same", 1), ("different", 5)):
            case.model.own = make()
            got = [compute(*case.args, chunk_size=2, randomness=randomness) for _ in "12"]
            one, two = (g["fc.bias"] if isinstance(g, dict) else g[:, None] for g in got)
            assert len(one.unique(dim=0)) == len(two.unique(dim=0)) == count
            assert not torch.equal(one, two), "drawn once, for good"
        with refused("draws random numbers"):
            compute(*case.args)


def test_check_sees_small_gradients_too():
    def halved(self: Apply, inputs: Tensor) -> Tensor:
        small = self.small
        if debug_unwrap(inputs) is not inputs:  # under transforms
            small = (small + small.detach()) / 2
        return self.fc(inputs) + 1e-9 * F.linear(inputs, small)

    case = one_linear(halved)
    case.model.small = nn.Parameter(torch.randn(2, 3).double())
    expected = oracle(*case.args)
    bare = gradients.func_gradients(*case.args)["small"]
    assert torch.allclose(bare, expected["small"] / 2, atol=0)
    with pytest.warns(FallbackWarning, match=r"small by.*\d") as heard:
        assert_equal(gradients.func_gradients(*case.args, check=True), expected, TOLERANCE)
    assert len(heard) == 1


def test_check_says_nothing_of_what_is_right_and_refuses_what_draws():
    """Nor of what overflows in both ways, which is no reason for the loop."""
    nan = one_linear(lambda m, x: m.fc(x) * torch.tensor([1.0, torch.nan]))
    for case in (each.to(torch.float32) for each in (zoo.make("mlp"), zoo.make("lstm"), nan)):
        expected = gradients.func_gradients(*case.args)
        with warnings.catch_warnings(action="error"):
            got = gradients.func_gradients(*case.args, check=True)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert got["fc.weight"].isnan().any()
    for randomness in ("same", "different"):
        with refused("check", "random numbers"):
            gradients.func_gradients(*case.args, randomness=randomness, check=True)


def test_what_failed_under_transforms_is_not_tried_for_each_chunk():
    tried = []

    def forward(self: Apply, inputs: Tensor) -> Tensor:
        tried.append(debug_unwrap(inputs) is not inputs)
        return branching(self, inputs)

    norms.gradient_norms(*one_linear(forward).args, chunk_size=1)
    assert sum(tried) == 2
