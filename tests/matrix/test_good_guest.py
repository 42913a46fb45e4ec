"""What a call leaves of the process and the parameters, and whose an error is: ours, or not."""

import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import debug_unwrap

import helpers
from helpers import benchmark, gradients, jacobians, norms
from helpers.layers import linear, recorder
from helpers.transforms import batches
from helpers.transforms.fallback import FallbackWarning
from helpers.transforms.reach import is_own
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


def convolutional() -> nn.Module:
    convolution = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4))
    return nn.Sequential(convolution, nn.Flatten(), nn.Linear(16, 4))


BODIES = [
    lambda: nn.LSTM(4, 4, batch_first=True),
    lambda: nn.GRU(4, 4, batch_first=True),
    convolutional,
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
    """Four threads with ten models each, while a fifth compiles; the same in one thread."""
    data, targets = torch.randn(3, 4, 4), torch.randn(3, 4)

    def models(meet: threading.Barrier) -> list[list[nn.Module]]:
        """Make ten models for each of four threads; in a turn, threads have various bodies."""
        torch.manual_seed(0)
        made = []
        for thread in range(4):
            of_thread = []
            for turn in range(10):
                body = BODIES[(thread + turn) % 3]()
                of_thread.append(Apply(meeting, body=body, meet=[meet.wait], was=functions()))
            made.append(of_thread)
        return made

    def calls(models: list[nn.Module]) -> list[dict[str, Tensor]]:
        results = []
        for turn, model in enumerate(models):
            met.waiting = True
            if turn % 3 == 0:
                results.append(gradients.func_gradients(model, squared, data, targets))
            elif turn % 3 == 1:
                results.append({"": norms.gradient_norms(model, squared, data, targets)})
            else:
                results.append({"": jacobians.func_jacobians(model, data)})
        return results

    compiled = []

    def note(graph, inputs):
        compiled.append(graph)
        return graph.forward

    def compiling(size: int) -> None:
        function = torch.compile(lambda x: x.sin() * 2, backend=note, dynamic=False)
        assert torch.equal(function(torch.ones(size)), torch.ones(size).sin() * 2)

    compiling(1)
    alone = [calls(each) for each in models(threading.Barrier(1))]
    before = functions(), switches()
    several = models(threading.Barrier(4))
    size = 1
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(calls, each) for each in several]
        while not all(each.done() for each in running):
            size = min(size + 1, 6)
            compiling(size)
        together = [each.result() for each in running]
    assert (functions(), switches()) == before
    for thread in range(4):
        for got, expected in zip(together[thread], alone[thread], strict=True):
            assert_equal(got, expected, 1e-6)
    # Each size was compiled once, and a new one still is.
    compiling(7)
    assert len(compiled) == size + 1


def loop_of_one(case: zoo.Case, _: object) -> dict[str, Tensor]:
    return case.pass_to(gradients.loop_gradients, wrt=["fc.bias"])


CALLERS = {name: WAYS[name].compute for name in ("func", "norms", "func, out", "func Jacobians")}
CALLERS["loop, wrt"] = loop_of_one


def one_linear(forward=lambda m, x: m.fc(x)) -> zoo.Case:
    case = zoo.make("linear")
    case.model = Apply(forward, fc=case.model)
    return case


def planted(module: object, right: object, error: Exception) -> object:
    """Make a function of helpers fail the first time, so that a slower way would get through."""
    values = dict(vars(module), right=right, errors=[error])
    # In its own file, since the file of a traceback says whose an error is.
    code = """def planted(*args, **options):
        if errors: raise errors.pop()
        return right(*args, **options)"""
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
    model = nn.Sequential()
    for _ in range(8):
        model.append(nn.Linear(256, 256).requires_grad_(way == "norms"))
    model.append(nn.Linear(256, 2))
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
    first = oracle(case.model, squared, case.data[:1], case.targets[:1])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        got = WAYS[way].compute(case, None)
    about_it = [each for each in heard if "fc.weight" in str(each.message)]
    assert len(about_it) == 1
    assert case.model.fc.weight is weight
    # Each write halves it; the loop runs the model once for each of three samples.
    writes = (start / weight.detach()).log2()
    assert torch.equal(writes, writes[:1, :1].expand(2, 3))
    if way == LOOP:
        assert writes[0, 0] == 3
    else:
        assert writes[0, 0] >= 1
    if way != "norms":
        # The second sample meets what the first has written.
        of_first = {name: rows[:1] for name, rows in got.items()}
        assert_equal(of_first, first, TOLERANCE)


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
        one_linear(meanwhile).pass_to(gradients.func_gradients)
        drawn.clear()
        one_linear(meanwhile).pass_to(norms.gradient_norms)
    draw()
    assert len(set(drawn)) == 4


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
    """Equal samples have equal results if they draw the same; a second call draws anew."""
    make, draw = GENERATORS[kind]
    case = one_linear(lambda m, x: forward(m, x) * draw(m.own))
    case.data, case.targets = torch.ones(5, 3).double(), torch.zeros(5, 2).double()

    def of_bias(randomness: str) -> Tensor:
        options = {"chunk_size": 2, "randomness": randomness}
        return case.pass_to(gradients.func_gradients, **options)["fc.bias"]

    def norm(randomness: str) -> Tensor:
        options = {"chunk_size": 2, "randomness": randomness}
        return case.pass_to(norms.gradient_norms, **options)[:, None]

    for compute in (of_bias, norm):
        for randomness, count in (("same", 1), ("different", 5)):
            case.model.own = make()
            first, second = compute(randomness), compute(randomness)
            assert len(first.unique(dim=0)) == count
            assert len(second.unique(dim=0)) == count
            assert not torch.equal(first, second), "drawn once, for good"
    with refused("draws random numbers"):
        case.pass_to(gradients.func_gradients)
    with refused("draws random numbers"):
        case.pass_to(norms.gradient_norms)


def test_check_sees_small_gradients_too():
    """A gradient that is half as large under transforms, in a part of 1e-9 of all."""

    def halved(self: Apply, inputs: Tensor) -> Tensor:
        small = self.small
        if debug_unwrap(inputs) is not inputs:  # under transforms
            small = (small + small.detach()) / 2
        return self.fc(inputs) + 1e-9 * F.linear(inputs, small)

    case = one_linear(halved)
    case.model.small = nn.Parameter(torch.randn(2, 3).double())
    expected = case.pass_to(oracle)
    bare = case.pass_to(gradients.func_gradients)["small"]
    assert torch.allclose(bare, expected["small"] / 2, atol=0)
    with pytest.warns(FallbackWarning, match=r"small by.*\d") as heard:
        assert_equal(case.pass_to(gradients.func_gradients, check=True), expected, TOLERANCE)
    assert len(heard) == 1


def test_check_says_nothing_of_what_is_right_and_refuses_what_draws():
    """Nor of what overflows in both ways, which is no reason for the loop."""
    nan = one_linear(lambda m, x: m.fc(x) * torch.tensor([1.0, torch.nan]))
    for case in (zoo.make("mlp"), zoo.make("lstm"), nan):
        case = case.to(torch.float32)
        expected = case.pass_to(gradients.func_gradients)
        with warnings.catch_warnings(action="error"):
            got = case.pass_to(gradients.func_gradients, check=True)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert got["fc.weight"].isnan().any()
    for randomness in ("same", "different"):
        with refused("check", "random numbers"):
            case.pass_to(gradients.func_gradients, randomness=randomness, check=True)


def test_what_failed_under_transforms_is_not_tried_for_each_chunk():
    tried = []

    def forward(self: Apply, inputs: Tensor) -> Tensor:
        tried.append(debug_unwrap(inputs) is not inputs)
        return branching(self, inputs)

    one_linear(forward).pass_to(norms.gradient_norms, chunk_size=1)
    assert sum(tried) == 2


def test_code_that_lies_beside_the_helpers_is_not_taken_for_theirs():
    """Somebody may merge the folder into a package `helpers` of their own."""
    code = "def forward(self, x):\n return scripted(self.fc(x))\n"
    code += "def failing(p, t):\n check(p)\n return (p - t).square().sum()\n"
    scripted = torch.jit.CompilationUnit("def f(x):\n    return x.tanh()\n").f

    def check(predictions: Tensor) -> None:
        if debug_unwrap(predictions) is not predictions:
            exec("raise KeyError", {"__name__": "helpers.mine"})

    theirs = {"__name__": "helpers.mine", "scripted": scripted, "check": check}
    exec(code, theirs)
    case = one_linear(theirs["forward"])
    with pytest.warns(FallbackWarning, match="scripted") as heard:
        gradients.func_gradients(*case.args)
    assert heard[0].filename == __file__
    case = one_linear()
    expected = gradients.func_gradients(case.model, squared, *case.batch)
    with pytest.warns(FallbackWarning, match="KeyError"):
        got = gradients.func_gradients(case.model, theirs["failing"], *case.batch)
    assert got.keys() == expected.keys()


def test_what_another_thread_drew_in_one_way_does_not_refuse_the_next():
    drawn = []

    def meanwhile(self: Apply, inputs: Tensor) -> Tensor:
        if not drawn:
            drawn.append(pool.submit(random.random).result())
        return self.fc(inputs)

    case = one_linear(meanwhile)
    with ThreadPoolExecutor(1) as pool, pytest.warns(FallbackWarning) as heard:
        case.pass_to(norms.gradient_norms)
    assert "cannot be recorded" in str(heard[0].message), "and then all at once, not in a loop"


def code_of_torch() -> dict[tuple[str, ...], object]:
    """Return the functions and classes that modules of torch hold, and the methods of classes."""
    held = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] != "torch":
            continue
        for name, value in list(vars(module).items()):
            if callable(value):
                held[module_name, name] = value
            if isinstance(value, type):
                for attribute, method in list(vars(value).items()):
                    if callable(method):
                        held[module_name, name, attribute] = method
    return held


@pytest.mark.parametrize("way", WAYS)
def test_no_code_of_torch_is_replaced_during_a_call(way):
    """Or another thread would notice."""
    seen = []

    def looks(self: Apply, inputs: Tensor) -> Tensor:
        seen.append(code_of_torch())
        return self.fc(inputs)

    case = one_linear(looks)
    truth = SimpleNamespace(limit=0.1)
    WAYS[way].compute(case, truth)  # what is imported then is there below
    before = code_of_torch()
    seen.clear()
    WAYS[way].compute(case, truth)
    assert seen
    for now in (*seen, code_of_torch()):
        replaced = [name for name in before if now.get(name) is not before[name]]
        assert not replaced


NOT_OF_THE_ENGINE = {
    "benchmark", "compare", "data", "exercises", "memory", "plots", "study", "text", "tooling",
    "models",  # an error in one is a model's
}  # fmt: skip


def test_each_module_of_helpers_is_known_to_run_in_the_engine_or_not():
    """Or an error of ours there would count as torch's, and lead to the loop."""
    found = set()
    for path in Path(helpers.__file__).parent.iterdir():
        if path.name == "__init__.py" or path.name.startswith("__pycache__"):
            continue
        if path.suffix == ".py" or (path / "__init__.py").exists():
            found.add(path.stem)
    own = {name for name in found if is_own(f"helpers.{name}")}
    assert found - own == NOT_OF_THE_ENGINE
