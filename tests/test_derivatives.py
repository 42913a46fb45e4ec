"""First to third derivatives through operations of torch, against finite differences.

Each composition of `grad`, `jvp`, `hessian` and `backward()` runs along a curve through the inputs.
`WRONG` lists those whose number is off by more than 1e-4 without an error. A test that turns red
means that the torch at hand has mended a fault, or has a new one: write it down there, and in the
tables of lessons 6 and 14.
"""

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
# From 2.15 on, plain autograd raises. `torch.func` goes on.
STATISTICS = NORM | ({"backward (3)"} if HERE < (2, 15) else set())
BOTH = FORWARD | {"jvp", "jvp.grad", "hessian", "jvp.grad.grad"}
WRONG: dict[str, set[str]] = {
    "layer_norm": NORM | {"backward (3)"},
    "instance_norm": STATISTICS,
    "batch_norm, training": STATISTICS,
    "weight_norm": {"grad.grad", "backward (2)", "grad.grad.grad", "backward (3)"},
    "det": DETERMINANT,
    "slogdet": DETERMINANT,
    "logdet": DETERMINANT,
    "solve": DETERMINANT,
    "cholesky_inverse": BOTH,
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
    1: "jvp",
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


def wrong(operation: str) -> set[str]:
    """Return the compositions whose number is off, for an operation at one point of the curve."""
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
    found = set()
    for order, compositions in COMPOSITIONS.items():
        for composition in compositions.split():
            try:
                result = derive(function, composition, order, s)
            except (RuntimeError, NotImplementedError):  # which is no silent fault
                continue
            if abs(result - expected[order]) > 1e-4 * max(1, abs(expected[order])):
                found.add(f"{composition} ({order})" if composition == "backward" else composition)
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_derivatives_are_right_or_listed_as_wrong(operation):
    assert wrong(operation) == WRONG.get(operation, set())
