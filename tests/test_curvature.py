"""Products with curvature matrices, against matrices made from loops, in float64."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import benchmark
from helpers.curvature import fisher_product, gauss_newton_product, matrix
from tests.support.oracle import Truth, refused
from tests.support.ways import WAYS
from tests.support.zoo import Case

pytestmark = pytest.mark.filterwarnings("ignore:the samples were taken one after the other")
close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)


def classifier() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    data = torch.randn(5, 4, dtype=torch.float64)
    return Case(model, data, torch.randint(3, (5,)), F.cross_entropy)


def random_vector(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.randn_like(p) for name, p in model.named_parameters()}


def flat(vector: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in vector.values()])


PRODUCTS = {
    "fisher": lambda c, v: fisher_product(c.model, c.data, v),
    "newton": lambda c, v: gauss_newton_product(*c.args, v),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_matrix_is_that_of_the_products_and_so_is_a_block_of_it(kind):
    case, calls = classifier(), []

    def product(vector: dict[str, Tensor]) -> dict[str, Tensor]:
        calls.append(vector)
        return PRODUCTS[kind](case, vector)

    vector, params = random_vector(case.model), dict(case.model.named_parameters())
    whole = matrix(product, params, chunk_size=9)
    assert len(calls) == 27 / 9, "columns are computed at once"
    close(whole, whole.T)
    close(whole @ flat(vector), flat(product(vector)))
    names = ["2.bias", "0.weight"]  # in another order than the model's: 3 and 12 of 27
    block = matrix(product, {name: params[name] for name in names})
    places = torch.cat([torch.arange(24, 27), torch.arange(12)])
    close(block, whole[places][:, places])


LOSSES = {
    "its curvature depends on the target": lambda z, t: ((z - t) ** 4).sum(),
    "it branches, which vmap cannot do": lambda z, t: (z**2).sum() * float((z**2).sum() > 0.1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_other_losses(name):
    def make() -> Case:
        case = classifier()
        case.targets, case.loss_fn = torch.rand(5, 3, dtype=torch.float64), LOSSES[name]
        return case

    truth, way = Truth(make), WAYS["Gauss-Newton"]
    close(way.compute(make(), truth), way.expected(truth))


def test_neither_the_matrix_nor_the_gradients_are_made():
    model = nn.Sequential(nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 10))  # P = 164,410
    case = Case(model, torch.randn(64, 400), torch.randint(10, (64,)), F.cross_entropy)
    vector = random_vector(model)
    peak = benchmark.memory(lambda: gauss_newton_product(*case.args, vector)).peak
    assert peak < 10 * flat(vector).nbytes  # the gradients would be 64


class Branching(nn.Linear):
    """A layer that `vmap` cannot take, so that products go by Jacobians."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) if float(inputs.sum()) else inputs


@pytest.mark.parametrize("layer", [nn.Linear, Branching])
@pytest.mark.parametrize(("chunk_size", "dtype"), [(1, torch.bfloat16), (None, torch.float16)])
def test_means_in_half_precision_are_rounded_once(layer, chunk_size, dtype):
    """Every sample gives 512: a sum in bfloat16 stops to grow, and one in float16 overflows."""
    model = layer(1, 1, bias=False).to(dtype)
    data, targets = torch.full((270, 1), 16, dtype=dtype), torch.zeros(270, 1, dtype=dtype)
    vector = {"weight": torch.ones(1, 1, dtype=dtype)}
    got = gauss_newton_product(model, F.mse_loss, data, targets, vector, chunk_size=chunk_size)
    assert got["weight"].dtype == dtype
    assert got["weight"].item() == 512


def of_layer(layer, case):
    model = nn.Sequential(case.model, layer)
    return fisher_product(model, case.data, random_vector(model))


REFUSED = {  # by a word of the message
    "'9.bias'": lambda c, v: fisher_product(c.model, c.data, {"9.bias": v["0.bias"]}),
    "shape (3,)": lambda c, v: fisher_product(c.model, c.data, v | {"0.bias": torch.ones(4)}),
    "two logits": lambda c, _: of_layer(nn.Linear(3, 1).double(), c),
    "BatchNorm": lambda c, _: of_layer(nn.BatchNorm1d(3).double(), c),
    "5,759 GB": lambda c, v: matrix(dict, {"weight": torch.empty(1_199_882)}),
}


@pytest.mark.parametrize("word", REFUSED)
def test_refused_in_one_sentence(word):
    case = classifier()
    with refused(word):
        REFUSED[word](case, random_vector(case.model))
