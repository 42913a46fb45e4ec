"""Products with curvature matrices, against matrices made from loops, in float64."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import benchmark, jacobians
from helpers.curvature import (
    empirical_fisher_product,
    fisher_product,
    gauss_newton_product,
    matrix,
)
from tests.support.oracle import Truth, refused
from tests.support.ways import WAYS
from tests.support.zoo import Case

pytestmark = pytest.mark.filterwarnings("ignore:the samples were taken one after the other")
ones = torch.ones
close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)


def classifier() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    data = torch.randn(5, 4, dtype=torch.float64)
    return Case(model, data, torch.randint(3, (5,)), F.cross_entropy)


def params_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def random_vector(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.randn_like(p) for name, p in params_of(model).items()}


def flat(vector: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in vector.values()])


PRODUCTS = {
    "fisher": lambda c, v: fisher_product(c.model, c.data, v),
    "empirical": lambda c, v: empirical_fisher_product(*c.args, v),
    "newton": lambda c, v: gauss_newton_product(*c.args, v),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_matrix_is_that_of_the_products_and_so_is_a_block_of_it(kind):
    case, calls = classifier(), []

    def product(vector: dict[str, Tensor]) -> dict[str, Tensor]:
        calls.append(vector)
        return PRODUCTS[kind](case, vector)

    vector = random_vector(case.model)
    whole = matrix(product, params_of(case.model), chunk_size=9)
    assert len(calls) == 27 / 9, "columns are computed at once"
    close(whole, whole.T)
    close(whole @ flat(vector), flat(product(vector)))
    names = ["2.bias", "0.weight"]  # in another order than the model's
    like = {name: params_of(case.model)[name] for name in names}
    numbered = jacobians.unflatten_jacobians(torch.arange(27).double(), case.model)
    places = flat({name: numbered[name] for name in names}).long()
    close(matrix(product, like), whole[places][:, places])


def fourth_power(predictions: Tensor, targets: Tensor) -> Tensor:
    """A loss whose second derivative depends on the target."""
    return ((predictions - targets) ** 4).sum()


def by_value(predictions: Tensor, targets: Tensor) -> Tensor:
    """A loss that branches on a number, which `vmap` cannot do: the square, from a point on."""
    size = predictions.square().sum()
    return size if float(size.detach()) > 0.1 else 0 * size


@pytest.mark.parametrize("loss_fn", [F.mse_loss, F.huber_loss, fourth_power, by_value])
@pytest.mark.parametrize("kind", ["empirical Fisher", "Gauss-Newton"])
def test_other_losses(kind, loss_fn):
    def make() -> Case:
        case = classifier()
        case.targets, case.loss_fn = torch.rand(5, 3, dtype=torch.float64), loss_fn
        return case

    truth, way = Truth(make), WAYS[kind]
    close(way.compute(make(), truth), way.expected(truth))


class Branching(nn.Linear):
    """A layer that `vmap` cannot take, so that products go by Jacobians."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) if float(inputs.sum()) else inputs


@pytest.mark.parametrize(
    ("layer", "chunk_size", "dtype"),
    [
        (nn.Linear, 1, torch.bfloat16),
        (nn.Linear, None, torch.float16),
        (Branching, 1, torch.float16),
        (Branching, None, torch.bfloat16),
    ],
)
def test_means_in_half_precision_are_rounded_once(layer, chunk_size, dtype):
    """Every sample gives 512: a sum in bfloat16 stops to grow, and one in float16 overflows."""
    model = layer(1, 1, bias=False).to(dtype)
    data, targets = torch.full((270, 1), 16, dtype=dtype), torch.zeros(270, 1, dtype=dtype)
    vector = {"weight": torch.ones(1, 1, dtype=dtype)}
    args, options = (model, F.mse_loss, data, targets), {"chunk_size": chunk_size}
    product = functools.partial(gauss_newton_product, *args, **options)
    for got in (product(vector)["weight"], matrix(product, vector)):
        assert got.dtype == dtype
        assert got.item() == 512


@pytest.mark.parametrize("kind", PRODUCTS)
def test_neither_the_matrix_nor_the_gradients_are_made(kind):
    model = nn.Sequential(nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 10))  # P = 164,410
    case = Case(model, torch.randn(64, 400), torch.randint(10, (64,)), F.cross_entropy)
    vector = random_vector(model)
    peak = benchmark.memory(lambda: PRODUCTS[kind](case, vector)).peak
    assert peak < 10 * flat(vector).nbytes  # the gradients would be 64


def test_a_matrix_of_two_dtypes_has_the_wider_one_and_no_graph():
    like = {"a": torch.ones(2).requires_grad_(), "b": torch.ones(1, dtype=torch.float64)}

    def product(vector: dict[str, Tensor]) -> dict[str, Tensor]:
        assert {n: t.dtype for n, t in vector.items()} == {n: t.dtype for n, t in like.items()}
        return {name: tensor * like[name][0] for name, tensor in vector.items()}

    got = matrix(product, like)
    assert torch.equal(got, torch.eye(3, dtype=torch.float64))
    assert not got.requires_grad


def fisher(change=None, **options):
    """Call with a vector that was changed."""
    return lambda c, v: fisher_product(c.model, c.data, change(v) if change else v, **options)


def empirical(loss_fn):
    return lambda c, v: empirical_fisher_product(c.model, loss_fn, c.data, c.targets, v)


def around(layer: nn.Module):
    """Call with a model that has a layer behind it."""
    return lambda c, v: fisher_product(
        nn.Sequential(c.model, layer), c.data, {f"0.{name}": tensor for name, tensor in v.items()}
    )


def of_complex(case: Case, _: object):
    model = nn.Linear(4, 3, dtype=torch.complex128)
    return fisher_product(model, case.data, params_of(model))


# The call, by case and vector, and what the message names.
REFUSED = {
    "data and targets must have one batch size, got 5 and 3": (
        lambda c, v: gauss_newton_product(c.model, c.loss_fn, c.data, c.targets[:3], v)
    ),
    "data must hold a sample at least": lambda c, v: fisher_product(c.model, c.data[:0], v),
    "data must be a tensor (B, ...), got list": lambda c, v: fisher_product(c.model, [1], v),
    "vector names '9.bias', which is no parameter of this model that requires a gradient": (
        fisher(lambda v: {"9.bias": v["0.bias"]})
    ),
    "['0.bias'] must have the shape (3,), got (4,)": fisher(lambda v: v | {"0.bias": ones(4)}),
    "must have dtype torch.float64, got torch.float32": fisher(lambda v: v | {"0.bias": ones(3)}),
    "vector must hold a parameter at least": fisher(lambda v: {}),
    "vector['weight'] must be real, got torch.complex128": of_complex,
    "loss_fn must return a scalar": empirical(lambda z, t: z),
    "the model must return": around(nn.Unflatten(1, (3, 1))),
    "must return two logits at least, got (B, 1)": around(nn.Linear(3, 1).double()),
    "the model must return outputs (B, Y), got (3,) for a batch of one": around(nn.Flatten(0)),
    "is BatchNorm in training mode": around(nn.BatchNorm1d(3)),
    "draws random numbers": around(nn.Dropout()),
    "the model draws random numbers": empirical(lambda z, t: F.dropout(z).sum()),
    # In a loss that cannot be batched.
    "draws random numbers (": empirical(lambda z, t: F.dropout(z * float(z[0, 0])).sum()),
    "chunk_size must be a whole number, at least 1, got 0": fisher(chunk_size=0),
    "the product must return the shapes {'0.weight': (3, 4), ": (
        lambda c, v: matrix(lambda vector: {"0.bias": vector["0.bias"]}, v)
    ),
    "the matrix of 1,199,882 parameters would take 5,759 GB": (
        lambda c, v: matrix(dict, {"weight": torch.empty(1_199_882)})
    ),
    "like must hold a parameter at least": lambda c, v: matrix(dict, {}),
    "like must be a dictionary {name: tensor}, got list": lambda c, v: matrix(dict, [v["0.bias"]]),
    "must be a whole number, at least 1, got None": lambda c, v: matrix(dict, v, chunk_size=None),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused_in_one_sentence(words):
    case = classifier()
    with refused(words, error=(TypeError, ValueError)):
        REFUSED[words](case, random_vector(case.model))
