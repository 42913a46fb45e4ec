"""Every case by every way: the values, what is said, and the model and the data as they were."""

import functools
import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.transforms.fallback import FallbackWarning
from tests.support import wild, zoo
from tests.support.oracle import TOLERANCE, TOLERANCES, Truth, assert_equal
from tests.support.snapshot import Snapshot
from tests.support.ways import LOOP, WAYS, Way


def run_before(name: str) -> zoo.Case:
    case = zoo.make(name)
    case.model(case.data)
    return case


CASES: dict[str, Callable[[], zoo.Case]] = {}
for _name in zoo.MODELS:
    CASES[_name] = functools.partial(zoo.make, _name)
for _name in wild.MODELS:
    CASES[f"wild: {_name}"] = functools.partial(wild.make, _name)
for _name in ("stash", "weight norm hook", "buffer rebound"):
    CASES[f"run before: {_name}"] = functools.partial(run_before, _name)
# Each pass may say what it meets.
SEVERAL_PASSES = ("kernel",)
# A gradient that a hook changes is no derivative any more, so there is no matrix of it.
NO_DERIVATIVE = "wild: gradient clamped"
# No case keeps state outside of its model, or writes into its parameters, where it would stay: see
# `test_gradients_contract` and `test_good_guest`.
MATRIX = {*itertools.product(CASES, WAYS)}
MATRIX -= {*itertools.product([NO_DERIVATIVE], SEVERAL_PASSES)}
# What `functional_call`, which a task of the gradient computers calls, refuses.
UNCALLED = "wild: scripted", "wild: data parallel"

# What goes to the loop, with one warning.
FALLBACKS = {
    "buffer in place",
    "LSTM of packed sequences",
    "wild: item",
    "instance norm tracking",
    "wild: kept in a tensor",
    "wild: checkpoint reentrant",
    "wild: custom operator",
    "wild: checkpoint",
    "wild: scripted",
    "wild: solve columns",
    "wild: index_fill",
    "wild: force",
    "wild: condition",
    "wild: seed of its own",
    "wild: a view of a parameter",
    "wild: key padding mask",
}
# What torch itself takes one sample after the other, and says so.
SLOW = "bilinear", "embedding bag", "encoder train", "encoder eval", "wild: sparse buffer"
SLOW += ("LSTM of packed sequences",)


@functools.cache
def truth_of(name: str) -> Truth:
    return Truth(CASES[name])


def prepare(case: zoo.Case) -> Snapshot:
    """Give some parameters a `.grad` that must stay, and take a snapshot."""
    if not isinstance(case.model, torch.jit.ScriptModule):
        for parameter in list(case.model.parameters())[::2]:
            parameter.grad = torch.full_like(parameter, 7.0)
    return Snapshot(case.model, *case.batch)


def take(way: Way, name: str) -> tuple[dict[str, Tensor], list[warnings.WarningMessage]]:
    """Take a way, require that it changed nothing, and return what it gave and said."""
    truth, case = truth_of(name), CASES[name]()
    before, stream = prepare(case), torch.get_rng_state()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        got = way.compute(case, truth)
    assert before.changes() == []
    assert torch.equal(torch.get_rng_state(), stream)
    return got, heard


@pytest.mark.parametrize(("name", "way"), sorted(MATRIX))
def test_a_way_is_right_and_leaves_the_model_and_the_data_as_they_were(name, way):
    computed, way = way, WAYS[way]
    if not way.takes(truth_of(name)):
        pytest.skip("of outputs (B, Y), and few of them")
    if name in UNCALLED and "computer" in computed:
        with pytest.raises(ValueError, match="functional_call cannot give"):
            take(way, name)
        return
    got, heard = take(way, name)
    assert_equal(got, way.expected(truth_of(name)), TOLERANCE)
    for tensor in got.values():
        assert tensor.is_leaf
        assert not tensor.requires_grad

    said = [each for each in heard if each.category is FallbackWarning]
    for each in said:
        assert "/tests/support/" in each.filename, "it points at the line that called"
        cause = str(each.message.__cause__)
        assert cause.strip().splitlines()[0] in str(each.message)
    messages = [str(each.message) for each in said]
    if computed not in SEVERAL_PASSES:
        assert len(set(messages)) == len(messages), "nothing is said twice"
    if computed in ("func", "func, chunks"):
        assert len(messages) == (1 if name in FALLBACKS else 0)
        slow = [each for each in heard if "performance drop" in str(each.message)]
        assert bool(slow) == (name in SLOW)


@pytest.mark.parametrize("name", zoo.MODELS)
@pytest.mark.parametrize("way", [LOOP, "func, chunks", "norms"])
@pytest.mark.filterwarnings("ignore")
def test_a_way_in_float32(name, way):
    def make() -> zoo.Case:
        return CASES[name]().to(torch.float32)

    got = WAYS[way].compute(make(), Truth(make))
    for tensor in got.values():
        assert tensor.dtype == torch.float32
    assert_equal(got, WAYS[way].expected(truth_of(name)), TOLERANCES[torch.float32])


def failing(calls: int) -> Callable[..., None]:
    count = itertools.count()

    def fail(*args: object) -> None:
        if next(count) >= calls:
            raise ArithmeticError

    return fail


def after(fault: Callable[..., None], loss_fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def spoiled(predictions: Tensor, targets: Tensor) -> Tensor:
        fault()
        return loss_fn(predictions, targets)

    return spoiled


# One of each kind of what a model holds, and of what a forward changes.
FAILING = """tied weight|buffer counts|buffer rebound|stash|spectral norm hook|LSTM every end
wild: kept deep inside|wild: kept in a tensor|wild: hooks on first use|wild: item
wild: loss of what the forward kept|wild: data added to|flipping""".replace("\n", "|").split("|")


def flipping() -> zoo.Case:
    def run(self: zoo.Apply, inputs: Tensor) -> Tensor:
        self.fc.training = False
        self.seen.append(1)
        raise KeyError

    case = zoo.make("linear")
    case.model = zoo.Apply(run, fc=case.model, seen=[])
    return case


@pytest.mark.parametrize("calls", [0, 1, 2])
@pytest.mark.parametrize("spoiled", ["the forward", "the loss"])
@pytest.mark.parametrize("name", FAILING)
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_fails_is_left_as_it_was(name, spoiled, calls):
    failed = set()
    for way in WAYS:
        case, fault = (CASES | {"flipping": flipping})[name](), failing(calls)
        if spoiled == "the forward":
            for module in case.model.modules():
                module.register_forward_hook(fault)
        else:
            case.loss_fn = after(fault, case.loss_fn)
        before = prepare(case)
        try:
            WAYS[way].compute(case, truth_of("mlp"))
        except Exception:  # whatever a fault leads to
            failed.add(way)
        assert before.changes() == [], way
    assert {LOOP, "iterative computer"} <= failed
