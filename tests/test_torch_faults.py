"""Faults of torch that the collection goes around: each is there, or a release has mended it.

A test that turns red means that the torch at hand has mended a fault, or brought one back. Write
the first release without it into `MENDED`, say so in the entry of lesson 6 that it belongs to, and
see whether the way around it can go.
"""

import functools
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import while_loop
from torch.autograd.functional import jacobian
from torch.func import grad, jacrev, jvp, vmap

from helpers.transforms.known_wrong import KNOWN_WRONG

HERE = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
MENDED: dict[str, tuple[int, int]] = {}
"""The first release without a fault."""


def raises(messages, function, *arguments):
    """Tell whether a call raises an error with one of these messages, and no other."""
    try:
        function(*arguments)
    except Exception as error:
        if not any(each in f"{type(error).__name__}: {error}" for each in messages.split(" or ")):
            raise
        return True
    return False


def normalised_alone(images, behind):
    """Compare the gradient by one image on a CPU with that in a batch of two equal ones."""
    norm = nn.BatchNorm2d(3).eval()

    def gradient(batch):
        features = behind(norm(batch)).flatten(1)
        return torch.autograd.grad(features[0] @ torch.arange(12.0).cos(), batch)[0][0]

    alone = gradient(images.requires_grad_())
    together = gradient(images.detach().expand(2, -1, -1, -1).requires_grad_())
    return (alone - together).abs().max() > 0.1


def normalisation_transposed():
    return normalised_alone(torch.randn(1, 3, 2, 2), lambda x: x.flatten(2).transpose(1, 2))


def normalisation_of_tokens():
    return normalised_alone(
        torch.randn(1, 4, 3).transpose(1, 2).unflatten(2, (2, 2)), nn.Identity()
    )


def cond_under_grad():
    def signed(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)).sum()

    return raises("Expected FakeTensor", grad(signed), torch.randn(3))


def custom_operator():
    @torch.library.custom_op("faults::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    square.register_autograd(
        lambda ctx, g: 2 * ctx.saved_tensors[0] * g,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return raises("setup_context staticmethod", grad(lambda x: square(x).sum()), torch.randn(3))


def recurrent_rule():
    gru, state = nn.GRU(2, 3), torch.zeros(1, 3)
    with torch.no_grad():
        return raises(
            "Batching rule not implemented for aten::gru.input",
            vmap(lambda row: gru(row, state)[0]),
            torch.randn(4, 5, 2),
        )


def requires_grad_is_false():
    seen = []
    vmap(lambda x: seen.append(x.requires_grad) or x)(torch.randn(3, requires_grad=True))
    return seen == [False]


def export_of_gradients():
    class Program(nn.Module):
        def forward(self, x):
            return vmap(grad(lambda x: x.sin()))(x)

    messages = "has no attribute 'constant' or AssertionError: "  # the second before 2.13
    return raises(messages, torch.export.export, Program(), (torch.randn(3),))


def forward_mode(function, *inputs):
    return raises("Trying to use forward AD", lambda: jvp(function, inputs, inputs))


def by_hand(function, weight, batch):
    return torch.stack([jacobian(lambda w, x=x: function(w, x), weight) for x in batch])


def value(function, weight, batch):
    """Compare values under `vmap`."""
    found = vmap(function, (None, 0))(weight, batch)
    return found, torch.stack([function(weight, x) for x in batch])


def jacobians(function, weight, batch):
    """Compare derivatives by `vmap` over `jacrev`."""
    found = vmap(jacrev(function), (None, 0))(weight, batch)
    return found, by_hand(function, weight, batch)


def outside(function, weight, batch):
    """Compare derivatives where autograd lies outside of `vmap`."""
    leaf = weight.expand(len(batch), *weight.shape).requires_grad_()
    (found,) = torch.autograd.grad(vmap(function)(leaf, batch).sum(), leaf)
    return found, by_hand(function, weight, batch)


def is_wrong(compare, function, weight, batch):
    found, expected = compare(function, weight, batch)
    return found.shape != expected.shape or (found - expected).abs().max() > 1e-3


def unseen(name):
    """Tell whether a tensor under `vmap` shows nothing of a graph outside of it."""
    seen, leaf = [], torch.randn(3, requires_grad=True)
    rows = leaf.sin() if name == "is_leaf" else leaf * 1
    vmap(lambda x: seen.append(getattr(x, name)) or x)(rows)
    return seen != [getattr(rows[0], name)] if name != "grad_fn" else seen == [None]


def while_loop_in_autograd():
    """Compare the gradient of two steps with that of the same steps by hand."""
    weight, x = torch.randn(2, 3)
    body = lambda i, y: (i + 1, (y * weight).cos())  # noqa: E731
    weight.requires_grad_()
    found = while_loop(lambda i, y: i < 2, body, (torch.tensor(0), x))[1]
    grads = [
        torch.autograd.grad(each.sum(), weight)[0]
        for each in (found, ((x * weight).cos() * weight).cos())
    ]
    return (grads[0] - grads[1]).abs().max() > 1e-3


class Tripled(torch.autograd.Function):
    """The identity with three times its gradient, and a rule for `vmap` that does not say so."""

    forward = staticmethod(lambda x: x.clone())
    setup_context = staticmethod(lambda ctx, inputs, output: None)
    backward = staticmethod(lambda ctx, grads: 3 * grads)
    vmap = staticmethod(lambda info, in_dims, x: (x.clone(), in_dims[0]))


torch.manual_seed(0)
MATRIX, ROW, ROWS = torch.randn(2, 3), torch.randn(3), torch.randn(4, 3)
SQUARES, COLUMN = torch.randn(4, 4, 4) + 4 * torch.eye(4), torch.randn(4, 1)
TABLE, WORDS = torch.randn(6, 2), torch.tensor([[1, 2], [3, 1]])
lu = torch.linalg.lu_factor
CALLS = {
    "roll": (value, lambda w, x: torch.roll(w.sum() * x.sum(), 1), MATRIX, ROWS),
    "index_fill": (value, lambda w, x: w.index_fill(1, torch.tensor([0]), x.sum()), MATRIX, ROWS),
    "linalg_solve": (value, lambda w, x: torch.linalg.solve(x[None], w), COLUMN, SQUARES),
    "linalg_lu_solve": (
        *(jacobians, lambda w, x: torch.linalg.lu_solve(*lu(x[None]), w[None])[0, :, 0]),
        *(COLUMN, SQUARES),
    ),
    "lu_solve": (
        *(jacobians, lambda w, x: torch.lu_solve(w[None], *lu(x[None]))[0, :, 0]),
        *(COLUMN, SQUARES),
    ),
    "prelu": (jacobians, lambda w, x: F.prelu(x, w), ROW[:1], torch.randn(3, 3)),
    "cdist": (jacobians, lambda w, x: torch.cdist(x[None], w)[0], MATRIX, ROWS),
    "select_scatter": (
        *(outside, lambda w, x: (torch.select_scatter(MATRIX * x, w, 0, 1) @ x).sum()),
        *(ROW, ROWS),
    ),
    "custom_function_call": (outside, lambda w, x: (Tripled.apply(w) * x).sum(), ROW, ROWS),
    "as_strided": (outside, lambda w, x: (x @ w.as_strided((3, 2), (1, 1))).sum(), MATRIX, ROWS),
    "as_strided_copy": (
        *(outside, lambda w, x: (x @ torch.as_strided_copy(w, (3, 2), (1, 1))).sum()),
        *(MATRIX, ROWS),
    ),
    "embedding": (
        *(outside, lambda w, x: F.embedding(x, w * 2, padding_idx=1).sin().sum()),
        *(TABLE, WORDS),
    ),
}
KNOWN = {name: functools.partial(is_wrong, *case) for name, case in CALLS.items()}
KNOWN |= {name: functools.partial(unseen, name) for name in ("requires_grad", "grad_fn", "is_leaf")}
KNOWN["while_loop"] = while_loop_in_autograd
QKV, LSTM = torch.randn(1, 2, 8, 4), nn.LSTM(2, 3)
LENGTHS = torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2])
FORWARD_MODE = {
    "attention": (lambda q: F.scaled_dot_product_attention(q, QKV, QKV), QKV),
    "lstm": (lambda x: LSTM(x)[0], torch.randn(4, 1, 2)),
    "gammainc": (lambda x: torch.special.gammainc(torch.tensor(2.0), x), torch.tensor(1.0)),
    "ctc_loss": (lambda x: F.ctc_loss(x.log_softmax(2), *LENGTHS), torch.randn(6, 1, 5)),
}
FAULTS = [normalisation_transposed, normalisation_of_tokens, cond_under_grad]
FAULTS += [custom_operator, recurrent_rule, requires_grad_is_false, export_of_gradients]
FAULTS = {fault.__name__: fault for fault in FAULTS} | {
    f"forward_mode_{name}": functools.partial(forward_mode, *case)
    for name, case in FORWARD_MODE.items()
}
FAULTS |= {f"known_wrong_{name}": fault for name, fault in KNOWN.items()}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore")
def test_fault(fault):
    torch.manual_seed(0)
    there = MENDED.get(fault, (99, 0)) > HERE
    said = f"torch {torch.__version__} differs: see the top of this file"
    assert bool(FAULTS[fault]()) == there, said


def test_each_function_that_is_refused_has_its_fault_here():
    getters = {each: each.__self__ for each in KNOWN_WRONG if each.__name__ == "__get__"}
    assert {getters.get(each, each).__name__ for each in KNOWN_WRONG} == KNOWN.keys()
