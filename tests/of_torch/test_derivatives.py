"""First to third derivatives through operations of torch, at a generic point and at special ones.

Each composition of `grad`, `jvp`, `hessian` and `backward()` runs along a curve through the inputs.
At the generic point, finite differences give the right number, and `WRONG` lists the compositions
that are off by more than 1e-4, or NaN, without an error. At special points (ties, zeros, coinciding
points, the identity, equal eigenvalues, saturated ends), a formula gives it, and `WRONG_AT` lists
them. A test that turns red means that the torch at hand has mended a fault, or has a new one: write
it down there, and in the tables of lessons 6 and 14.
"""

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, hessian, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]
HERE = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))

torch.manual_seed(0)
# The curve of inputs, (2, 4, 6), is START + s ALONG + s^2 BENT.
START, ALONG, BENT = torch.randn(3, 2, 4, 6, dtype=torch.float64)
SCALE = torch.randn(6, dtype=torch.float64)
KERNEL = torch.randn(4, 4, 3, dtype=torch.float64)
SQUARE = torch.randn(6, 6, dtype=torch.float64)
ROWS = torch.tensor([0, 1, 1, 3])
CLASSES = torch.tensor([[0, 1, 2, 3, 1, 0], [2, 2, 1, 0, 3, 1]])
GRU, LSTM = nn.GRUCell(6, 5).double(), nn.LSTMCell(6, 5).double()
HEADS = nn.MultiheadAttention(6, 2, batch_first=True).double()


def rows(x: Tensor) -> Tensor:
    return x.flatten(0, 1)[:6]


def square(x: Tensor) -> Tensor:
    return rows(x) / 4 + 2 * torch.eye(6, dtype=x.dtype)


def positive(x: Tensor) -> Tensor:
    return rows(x).T @ rows(x) + 6 * torch.eye(6, dtype=x.dtype)


def attention(x: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])


def scattered(x: Tensor, how: str) -> Tensor:
    return x.new_ones(5, 6).scatter_reduce(0, ROWS[:, None].expand(4, 6), x[0], how)


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": lambda x: F.layer_norm(x, (6,), SCALE, SCALE.cos()),
    "instance_norm": F.instance_norm,
    "batch_norm, training": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm, eval": lambda x: F.batch_norm(x, KERNEL[0, :, 0], KERNEL[1, :, 0].exp()),
    "group_norm": lambda x: F.group_norm(x, 2),
    "rms_norm": lambda x: F.rms_norm(x, (6,), SCALE),
    "local_response_norm": lambda x: F.local_response_norm(x, 3),
    "weight_norm": lambda x: torch._weight_norm(x[0], x[1, :, :1], 0),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "attention, math kernel": attention,
    "MultiheadAttention": lambda x: HEADS(x, x, x)[0],
    "GRUCell": lambda x: GRU(x[0]),
    "LSTMCell": lambda x: LSTM(x[0])[0],
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "elu": F.elu,
    "selu": F.selu,
    "softplus": F.softplus,
    "log_sigmoid": F.logsigmoid,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "relu, to the fourth": lambda x: F.relu(x) ** 4,
    "linear": lambda x: F.linear(x, SQUARE),
    "bilinear": lambda x: F.bilinear(x, x.sin(), SQUARE[None]),
    "conv1d": lambda x: F.conv1d(x, KERNEL),
    "conv1d, its weight": lambda x: F.conv1d(START, x[0, :, :3].expand(4, 4, 3) * KERNEL),
    "conv2d": lambda x: F.conv2d(x[:, None], KERNEL[:, None, :2]),
    "embedding": lambda x: F.embedding(ROWS, x[0]),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 3, 1, 1),
    "interpolate": lambda x: F.interpolate(x[:, None], scale_factor=2, mode="bicubic"),
    "var": lambda x: x.var(-1),
    "prod": lambda x: x.prod(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "cross_entropy": lambda x: F.cross_entropy(x, CLASSES, reduction="none"),
    "mse_loss": lambda x: F.mse_loss(x.sin(), START, reduction="none"),
    "kl_div": lambda x: F.kl_div(x.log_softmax(-1), START.softmax(-1), reduction="none"),
    "det": lambda x: torch.linalg.det(square(x)),
    "slogdet": lambda x: torch.linalg.slogdet(square(x))[1],
    "logdet": lambda x: torch.logdet(positive(x)),
    "solve": lambda x: torch.linalg.solve(square(x), SQUARE),
    "inv": lambda x: torch.linalg.inv(square(x)),
    "cholesky": lambda x: torch.linalg.cholesky(positive(x)),
    "cholesky_inverse": lambda x: torch.cholesky_inverse(torch.linalg.cholesky(positive(x))),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(positive(x)),
    "svdvals": lambda x: torch.linalg.svdvals(square(x)),
    "matrix_exp": lambda x: torch.linalg.matrix_exp(square(x) / 4),
    "householder": lambda x: torch.linalg.householder_product(square(x)[:, :3], x[0, 0, :3]),
    "scatter_reduce, prod": lambda x: scattered(x, "prod"),
    "scatter_reduce, mean": lambda x: scattered(x, "mean"),
    "rfft": lambda x: torch.view_as_real(torch.fft.rfft(x)),
}
FORWARD = {"jvp.jvp", "grad.jvp", "grad.hessian", "grad.jvp.grad"}
FORWARD |= {"grad.jvp.jvp", "jvp.jvp.grad", "jvp.jvp.jvp"}
NORM = FORWARD | {"grad.grad.grad", "jvp.grad.grad"}
DETERMINANT = FORWARD if HERE < (2, 15) else set()
TWICE = {"jvp.jvp", "grad.jvp"} & DETERMINANT
# From 2.15 on, plain autograd raises. `torch.func` goes on.
STATISTICS = NORM | ({"backward (3)"} if HERE < (2, 15) else set())
BOTH = FORWARD | {"jvp", "jvp.grad", "hessian", "jvp.grad.grad"}
WRONG: dict[str, set[str]] = {
    "layer_norm": NORM | {"backward (3)"},
    "instance_norm": STATISTICS,
    "batch_norm, training": STATISTICS,
    "weight_norm": {"grad.grad", "backward (2)", "grad.grad.grad", "backward (3)"},
    "det": DETERMINANT | ({"grad.grad.grad", "jvp.grad.grad"} if HERE < (2, 15) else set()),
    "slogdet": DETERMINANT,
    "logdet": DETERMINANT,
    "solve": DETERMINANT,
    "cholesky_inverse": BOTH,
    "eigvalsh": {"grad.jvp.grad", "grad.hessian", "grad.jvp.jvp"},
    "householder": FORWARD,
    "scatter_reduce, prod": BOTH,
}


def along(operation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Make a number of a number: a weighted sum of what the operation makes of a curve's point."""

    def value(s: Tensor) -> Tensor:
        result = operation(START + s * ALONG + s * s * BENT).sin().flatten()
        return result @ torch.linspace(0.3, 1.7, len(result), dtype=result.dtype)

    return value


def slope_by_jvp(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda s: jvp(function, (s,), (torch.ones_like(s),))[1]


STEPS = {"grad": grad, "jvp": slope_by_jvp, "hessian": hessian}
# By order of the derivative.
COMPOSITIONS = {
    1: "backward jvp",
    2: "backward jvp.jvp jvp.grad grad.jvp grad.grad hessian",
    3: "backward grad.grad.grad grad.jvp.grad grad.hessian grad.jvp.jvp jvp.grad.grad "
    "jvp.jvp.grad jvp.jvp.jvp",
}


def derive(function: Callable, composition: str, order: int, s: Tensor) -> float:
    """Differentiate by a composition, the outermost step first; `backward` is plain autograd."""
    if composition == "backward":
        s = s.clone().requires_grad_()
        result = function(s)
        for _ in range(order):
            (result,) = torch.autograd.grad(result, s, create_graph=True)
        return result.item()
    for step in reversed(composition.split(".")):
        function = STEPS[step](function)
    return function(s).item()


def second_difference(function: Callable[[Tensor], float], s: Tensor) -> float:
    def at(h: float) -> float:
        return (function(s + h) - 2 * function(s) + function(s - h)) / h**2

    return (4 * at(1e-3) - at(2e-3)) / 3  # without the error of order h squared


def wrong(function: Callable[[Tensor], Tensor], s: Tensor, expected: dict[int, float]) -> set[str]:
    """Return the compositions whose number is off or NaN, given the right one of each order."""
    found = set()
    for order, right in expected.items():
        for composition in COMPOSITIONS[order].split():
            try:
                result = derive(function, composition, order, s)
            except (RuntimeError, NotImplementedError):  # which is no silent fault
                continue
            is_right = abs(result - right) <= 1e-4 * max(1, abs(right))  # False for NaN
            if not is_right:
                found.add(f"{composition} ({order})" if composition == "backward" else composition)
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_derivatives_are_right_or_listed_as_wrong(operation):
    function = along(OPERATIONS[operation])
    s = torch.tensor(0.3, dtype=torch.float64)

    def value(s: Tensor) -> float:
        return function(s).item()

    def first(s: Tensor) -> float:
        return derive(function, "backward", 1, s)

    slope = (value(s + 1e-6) - value(s - 1e-6)) / 2e-6
    # The third derivative is a difference of first ones, which must be right for that.
    assert first(s) == pytest.approx(slope, rel=1e-6, abs=1e-6)
    expected = {1: slope, 2: second_difference(value, s), 3: second_difference(first, s)}
    assert wrong(function, s, expected) == WRONG.get(operation, set())


# Special points: functions of s at s = 0, and their first and second derivatives there by a formula
# (a third where it shows more). Only points count at which these exist: at a kink, as that of
# `relu(x)` at 0, torch documents a subgradient.
v = KERNEL[0, 0]  # (3,)
V = SQUARE[:3, :3] / 2
SYMMETRIC = (V + V.T) / 2
EYE = torch.eye(3, dtype=torch.float64)
SINGULAR = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))
COS, SIN = math.cos(0.7), math.sin(0.7)
TURN = torch.tensor([[COS, -SIN, 0], [SIN, COS, 0], [0, 0, 1]], dtype=torch.float64)
PLACES = KERNEL[1]  # (4, 3), four points in space
ZERO = torch.zeros((), dtype=torch.float64)


def of_det(matrix: Tensor) -> list[float]:
    """Differentiate det(I + s matrix) = 1 + s tr + s^2 (tr^2 - tr of the square) / 2 + ..."""
    trace = matrix.trace().item()
    return [trace, trace**2 - (matrix @ matrix).trace().item()]


def of_singular_det() -> list[float]:
    """Differentiate det(SINGULAR + s V), a polynomial in s."""
    last = V[2, 2].item()
    second = (V[0, 0] + V[1, 1]) * last - V[0, 2] * V[2, 0] - V[1, 2] * V[2, 1]
    return [last, 2 * second.item()]


def of_inverse(matrix: Tensor) -> list[float]:
    """Differentiate the sum of all entries of the inverse of I + s matrix = I - sM + s^2 M^2 ..."""
    return [-matrix.sum().item(), 2 * (matrix @ matrix).sum().item()]


def det_by_cross(x: Tensor) -> Tensor:
    return torch.linalg.cross(x[0], x[1]) @ x[2]


def sinc_by_series(x: Tensor) -> Tensor:
    is_small = x.abs() < 0.05
    harmless = x.where(~is_small, 1.0)
    return torch.where(is_small, 1 - x**2 / 6 + x**4 / 120, harmless.sin() / harmless)


def sinc_by_where(x: Tensor) -> Tensor:
    is_zero = x == 0
    harmless = x.where(~is_zero, 1.0)
    return torch.where(is_zero, 1.0, harmless.sin() / harmless)


def by_eigenvectors(x: Tensor) -> Tensor:
    """Invert a symmetric matrix."""
    values, vectors = torch.linalg.eigh(x)
    return (vectors / values) @ vectors.T


def all_distances(x: Tensor) -> Tensor:
    return (x[:, None] - x).norm(dim=-1)  # (4, 4), zeros on the diagonal


def of_distances() -> list[float]:
    """Differentiate the sum of all distances by differences, which a sum of pairs allows."""

    def pairs(s: Tensor) -> float:
        x = PLACES + s * PLACES.sin()
        first, second = torch.triu_indices(4, 4, 1)
        return 2 * (x[first] - x[second]).square().sum(dim=1).sqrt().sum().item()

    h = torch.full_like(ZERO, 1e-4)
    return [(pairs(h) - pairs(-h)) / 2e-4, second_difference(pairs, ZERO)]


SQUARED = [0, 2 * (v @ v).item()]  # of |s v|^2
OF_SQUARES = [2 * V.trace().item(), 2 * V.square().sum().item()]  # of tr((I + sV)^T (I + sV))
POINTS: dict[str, tuple[Callable[[Tensor], Tensor], list[float]]] = {
    # Ties: of equal numbers that move together.
    "amax, tie": (lambda s: s.exp().expand(3).amax(), [1, 1]),
    "median, tie": (lambda s: s.exp().expand(3).median(), [1, 1]),
    "sort, tie": (lambda s: s.exp().expand(3).sort().values @ v, [v.sum().item()] * 2),
    "max_pool1d, tie": (lambda s: F.max_pool1d(s.exp().expand(1, 4), 2).sum(), [2, 2]),
    # Zeros
    "norm(x)**2 at 0": (lambda s: (s * v).norm() ** 2, SQUARED),
    "x.square().sum() at 0": (lambda s: (s * v).square().sum(), SQUARED),
    "sqrt(x.square().sum())**2 at 0": (lambda s: (s * v).square().sum().sqrt() ** 2, SQUARED),
    "abs(x)**2 at 0": (lambda s: s.abs() ** 2, [0, 2]),
    "relu(x)**2 + relu(-x)**2 at 0": (lambda s: F.relu(s) ** 2 + F.relu(-s) ** 2, [0, 2]),
    "relu(x)**3 at 0": (lambda s: F.relu(s) ** 3, [0, 0]),
    "std(x)**2 of equal numbers": (lambda s: (1 + s * v).std() ** 2, [0, 2 * v.var().item()]),
    "var(x) of equal numbers": (lambda s: (1 + s * v).var(), [0, 2 * v.var().item()]),
    "normalize at 0": (lambda s: 1e-12 * F.normalize(s * v, dim=0).sum(), [v.sum().item(), 0]),
    # s (1 + s) (2 + s) = 2s + 3s^2 + s^3, and with the products before it 4s + 4s^2 + s^3
    "prod, one zero": (lambda s: torch.stack([s, 1 + s, 2 + s]).prod(), [2, 6, 6]),
    "cumprod, one zero": (lambda s: torch.stack([s, 1 + s, 2 + s]).cumprod(0).sum(), [4, 8]),
    "x**2 at 0": (lambda s: s**2, [0, 2]),
    "x**tensor(2.0) at 0": (lambda s: s ** (ZERO + 2), [0, 2]),
    "xlogy(0, x) at 0": (lambda s: torch.xlogy(ZERO, s), [0, 0]),
    "atan2(0, 1)": (lambda s: torch.atan2(s, 1 + s), [1, -2]),
    "sinc at 0": (lambda s: torch.sinc(s / math.pi), [0, -1 / 3]),
    "sinc by where at 0": (sinc_by_where, [0, -1 / 3]),
    "sinc by series at 0": (sinc_by_series, [0, -1 / 3]),
    # Coinciding points
    "pairwise_distance**2": (
        lambda s: F.pairwise_distance(s * v, ZERO.expand(3), eps=0) ** 2,
        SQUARED,
    ),
    "cdist**2": (lambda s: torch.cdist(s * v[None], ZERO.expand(1, 3)).sum() ** 2, SQUARED),
    "pdist**2": (lambda s: F.pdist(torch.stack([s * v, 0 * v])).sum() ** 2, SQUARED),
    "all distances": (lambda s: all_distances(PLACES + s * PLACES.sin()).sum(), of_distances()),
    # Identity, rotations and a singular matrix
    "det, identity": (lambda s: torch.linalg.det(EYE + s * V), of_det(V)),
    "det, rotation": (lambda s: torch.linalg.det(TURN + s * V), of_det(TURN.T @ V)),
    "det, singular": (lambda s: torch.linalg.det(SINGULAR + s * V), of_singular_det()),
    "det by cross, identity": (lambda s: det_by_cross(EYE + s * V), of_det(V)),
    "det by cross, singular": (lambda s: det_by_cross(SINGULAR + s * V), of_singular_det()),
    "slogdet, identity": (
        lambda s: torch.linalg.slogdet(EYE + s * V)[1],
        [V.trace().item(), -(V @ V).trace().item()],
    ),
    "solve, identity": (lambda s: torch.linalg.solve(EYE + s * V, EYE).sum(), of_inverse(V)),
    "inv, identity": (lambda s: torch.linalg.inv(EYE + s * V).sum(), of_inverse(V)),
    "pinv, identity": (lambda s: torch.linalg.pinv(EYE + s * V).sum(), of_inverse(V)),
    "matrix_exp at 0": (
        lambda s: torch.linalg.matrix_exp(s * V).sum(),
        [V.sum().item(), (V @ V).sum().item()],
    ),
    # Equal eigenvalues and singular values
    "eigvalsh, sum of squares": (
        lambda s: torch.linalg.eigvalsh(EYE + s * SYMMETRIC).square().sum(),
        [2 * SYMMETRIC.trace().item(), 2 * SYMMETRIC.square().sum().item()],
    ),
    "inverse by eigh": (
        lambda s: by_eigenvectors(EYE + s * SYMMETRIC).sum(),
        of_inverse(SYMMETRIC),
    ),
    "svdvals, sum of squares": (
        lambda s: torch.linalg.svdvals(EYE + s * V).square().sum(),
        OF_SQUARES,
    ),
    "nuclear norm": (
        lambda s: torch.linalg.matrix_norm(EYE + s * V, "nuc"),
        [V.trace().item(), (V.square().sum() - SYMMETRIC.square().sum()).item()],
    ),
    "Frobenius norm, squared": (
        lambda s: torch.linalg.matrix_norm(EYE + s * V) ** 2,
        OF_SQUARES,
    ),
    # Saturated ends
    "softplus above its threshold": (lambda s: F.softplus(25 + s), [1, 0]),
    "sigmoid at 40": (lambda s: torch.sigmoid(40 + s), [0, 0]),
    "log of sigmoid at -800": (lambda s: torch.sigmoid(s - 800).log(), [1, 0]),
    "logsigmoid at -800": (lambda s: F.logsigmoid(s - 800), [1, 0]),
    "log of softmax at 800": (lambda s: torch.stack([ZERO + 800, s]).softmax(0)[1].log(), [1, 0]),
    "log_softmax at 800": (lambda s: torch.stack([ZERO + 800, s]).log_softmax(0)[1], [1, 0]),
    "logit at 0.5": (lambda s: torch.logit(0.5 + s), [4, 0]),
    "log1p at 0": (lambda s: torch.log1p(s), [1, -1]),
    "acos(x)**2 at 1": (lambda s: torch.acos(1 - s) ** 2, [2, 2 / 3]),  # s >= 0
}
SECOND = {"backward (2)", "jvp.jvp", "jvp.grad", "grad.jvp", "grad.grad", "hessian"}
BOTH_ORDERS = SECOND | {"backward (1)", "jvp"}
BACKWARD_FIRST = {"backward (2)", "grad.jvp", "grad.grad"}  # 0 times infinity on the way back
# From 2.15 on, cdist and pdist have second derivatives; before, they raise.
DISTANCE = {"backward (2)", "grad.grad"} if HERE >= (2, 15) else set()
AT_ROTATIONS = SECOND - {"backward (2)"} if HERE < (2, 15) else set()
AT_SINGULAR = SECOND | {"jvp"} if HERE < (2, 15) else {"backward (2)", "grad.grad"}
WRONG_AT: dict[str, set[str]] = {
    "norm(x)**2 at 0": SECOND,
    "sqrt(x.square().sum())**2 at 0": BOTH_ORDERS,
    "abs(x)**2 at 0": SECOND,
    "relu(x)**2 + relu(-x)**2 at 0": SECOND,
    "std(x)**2 of equal numbers": SECOND,
    "normalize at 0": BACKWARD_FIRST,
    "prod, one zero": FORWARD - {"jvp.jvp", "grad.jvp"},
    "cumprod, one zero": {"jvp.jvp", "grad.jvp"},
    "x**tensor(2.0) at 0": {"grad.jvp"},
    "xlogy(0, x) at 0": BOTH_ORDERS,
    "sinc at 0": SECOND,
    "sinc by where at 0": SECOND,
    "pairwise_distance**2": SECOND,
    "cdist**2": DISTANCE,
    "pdist**2": DISTANCE,
    "all distances": BACKWARD_FIRST,
    "det, identity": AT_ROTATIONS,
    "det, rotation": AT_ROTATIONS,
    "det, singular": AT_SINGULAR,
    "slogdet, identity": TWICE,
    "solve, identity": TWICE,
    "eigvalsh, sum of squares": SECOND,
    "inverse by eigh": BOTH_ORDERS,
    "svdvals, sum of squares": SECOND,
    "nuclear norm": SECOND,
    "log of sigmoid at -800": BOTH_ORDERS,
    "log of softmax at 800": BOTH_ORDERS,
    "acos(x)**2 at 1": BOTH_ORDERS,
}


@pytest.mark.parametrize("point", POINTS)
def test_derivatives_at_special_points_are_right_or_listed_as_wrong(point):
    function, numbers = POINTS[point]
    expected = dict(enumerate(numbers, start=1))
    assert wrong(function, ZERO, expected) == WRONG_AT.get(point, set())
