"""Results written into given tensors, and into chunks of a result, instead of joined."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import benchmark, gradients, jacobians
from helpers.models import MLP
from tests.support.oracle import TOLERANCES, assert_equal, oracle
from tests.support.zoo import MODELS, make

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*which torch.vmap takes one sample"),
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning"),
]
chunks = pytest.mark.parametrize("chunk_size", [None, 1, 2, 99])


def rubbish(case, batch_size: int = 3) -> dict[str, Tensor]:
    return {
        name: torch.full((batch_size, *p.shape), torch.nan, dtype=p.dtype)
        for name, p in case.model.named_parameters()
        if p.requires_grad
    }


@chunks
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_written_into_the_buffers(name, chunk_size):
    case = make(name)
    out = rubbish(case)
    addresses = {n: t.data_ptr() for n, t in out.items()}
    got = gradients.func_gradients(*case.args, chunk_size=chunk_size, out=out)
    assert {n: t.data_ptr() for n, t in got.items()} == addresses
    assert_equal(got, oracle(*case.args), TOLERANCES[torch.float64])
    assert not any(t.requires_grad for t in out.values())


def test_names_are_those_of_wrt_in_its_order_whatever_the_order_of_out():
    case = make("mlp")
    out = {n: t for n, t in reversed(rubbish(case).items()) if n.startswith("fc1")}
    wrt = ["fc1.weight", "fc1.bias"]
    got = gradients.func_gradients(*case.args, wrt=wrt, out=out)
    assert_equal(got, oracle(*case.args, wrt=wrt), TOLERANCES[torch.float64])


def test_an_empty_batch_and_no_names():
    case = make("mlp", 0)
    out = rubbish(case, 0)
    assert gradients.func_gradients(*case.args, out=out) == out
    assert gradients.func_gradients(*case.args, wrt=[], out={}) == {}


def spoil(out: dict[str, Tensor], kind: str, case) -> object:
    first = next(iter(out))
    changes = {
        "name": lambda: {"other": out[first]},
        "shape": lambda: out | {first: out[first][:2]},
        "dtype": lambda: out | {first: out[first].float()},
        "device": lambda: out | {first: out[first].to("meta")},
        "grad": lambda: out | {first: out[first].requires_grad_()},
        "inference": lambda: out | {first: _inferred(out[first])},
        "weights": lambda: out | {"fc1.weight": case.model.fc1.weight.detach()[None]},
        "twice": lambda: out | {"fc2.bias": _part_of(out["fc1.weight"], out["fc2.bias"])},
        "list": lambda: list(out.values()),
        "no tensor": lambda: out | {first: 3},
    }
    return changes[kind]()


def _inferred(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


def _part_of(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.flatten()[: like.numel()].view(like.shape)


@pytest.mark.parametrize(
    ("kind", "error", "sentence"),
    [
        ("name", ValueError, r"out must have the names fc1\.weight, .*, got other"),
        ("shape", ValueError, r"out\['fc1\.weight'\] must have the shape \(1, 20, 784\), got"),
        ("dtype", ValueError, r"must have dtype torch\.float64, got torch\.float32"),
        ("device", ValueError, "must have device cpu, got meta"),
        ("grad", ValueError, "must not require a gradient"),
        ("inference", ValueError, "or be made in inference mode"),
        ("weights", ValueError, r"must have memory of its own, got some of model"),
        ("twice", ValueError, r"must have memory of its own, got some of out\['fc1\.weight'\]"),
        ("list", TypeError, "out must be a dictionary of tensors by name, got list"),
        ("no tensor", TypeError, r"out\['fc1\.weight'\] must be a tensor, got int"),
    ],
)
def test_a_bad_buffer_is_refused_before_anything_is_written(kind, error, sentence):
    case = make("mlp", 1)
    good = rubbish(case, 1)
    if kind == "shape":
        good["fc1.weight"] = good["fc1.weight"].repeat(3, 1, 1)
    out = spoil(good, kind, case)
    before = [p.clone() for p in case.model.parameters()]
    with pytest.raises(error, match=sentence) as caught:
        gradients.func_gradients(*case.args, out=out)
    assert "\n" not in str(caught.value)
    assert all(map(torch.equal, before, case.model.parameters()))
    assert all(t.isnan().all() for n, t in good.items() if n != "fc1.weight" or kind != "weights")


@chunks
@pytest.mark.parametrize("name", ["linear", "mlp", "scalars", "tied weight", "shared layer"])
def test_jacobians_are_written_into_the_buffer(name, chunk_size):
    case = make(name)
    expected = jacobians.loop_jacobians(case.model, case.data)
    out = torch.full_like(expected, torch.nan)
    got = jacobians.func_jacobians(case.model, case.data, chunk_size=chunk_size, out=out)
    assert got is out
    assert_equal({"J": out}, {"J": expected}, TOLERANCES[torch.float64])


@pytest.mark.parametrize(
    ("spoiled", "error", "sentence"),
    [
        (lambda out, case: out[..., 1:], ValueError, r"out must have the shape \(3, 10, 15910\)"),
        (lambda out, case: out.float(), ValueError, "out must have dtype torch.float64"),
        (lambda out, case: [out], TypeError, "out must be a tensor, got list"),
        (lambda out, case: out.requires_grad_(), ValueError, "must not require a gradient"),
        (
            lambda out, case: out.new_zeros(1).expand(out.shape),
            ValueError,
            "^out must have memory for each number, got an expanded tensor$",
        ),
    ],
)
@pytest.mark.parametrize("size", [0, 3])
def test_a_bad_buffer_for_jacobians_is_refused(spoiled, error, sentence, size):
    case = make("mlp", size)
    out = spoiled(torch.empty(size, 10, 15910, dtype=torch.float64), case)
    with pytest.raises(error, match=sentence.replace("(3", f"({size}")):
        jacobians.func_jacobians(case.model, case.data, out=out)


@pytest.mark.parametrize("batch_size", [64])
def test_neither_chunks_nor_columns_are_joined_in_a_second_copy(batch_size):
    model = MLP()
    images, labels = torch.randn(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))
    count = batch_size * 15910 * 4
    calls = [
        (
            count,
            lambda: gradients.func_gradients(model, F.cross_entropy, images, labels, chunk_size=4),
        ),
        (10 * count, lambda: jacobians.func_jacobians(model, images, chunk_size=4)),
    ]
    for size, call in calls:
        call()
        peak = benchmark.memory(call).peak
        assert size <= peak < 1.4 * size
