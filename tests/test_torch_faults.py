"""Faults of torch that helpers go around: each is there, or a release has mended it.

A test that turns red means that the torch at hand has mended a fault, or brought one back. Write
the first release without it into `MENDED`, say so in the entry of lesson 6 that it belongs to, and
see whether the way around it can go. Faults that lesson 6 alone tells of are tested there.
"""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops import while_loop
from torch.autograd.functional import jacobian
from torch.func import jacrev, vmap

from helpers.transforms.known_wrong import KNOWN_WRONG

HERE = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
MENDED: dict[str, tuple[int, int]] = {}
"""The first release without a fault."""


def differ(found, expected):
    return found.shape != expected.shape or (found - expected).abs().max() > 1e-3


def normalized_alone(images, behind):
    """Compare the gradient by one image on a CPU with that in a batch of two equal ones."""
    norm = nn.BatchNorm2d(3).eval()

    def gradient(batch):
        features = behind(norm(batch)).flatten(1)
        return torch.autograd.grad(features[0] @ torch.arange(12.0).cos(), batch)[0][0]

    together = gradient(images.detach().expand(2, -1, -1, -1).requires_grad_())
    return differ(gradient(images.requires_grad_()), together)


def recurrent_rule():
    gru, state = nn.GRU(2, 3), torch.zeros(1, 3)
    match = "Batching rule not implemented for aten::gru.input"
    with torch.no_grad(), pytest.raises(RuntimeError, match=match):
        vmap(lambda row: gru(row, state)[0])(torch.randn(4, 5, 2))
    return True


def by_hand(function, weight, batch):
    return torch.stack([jacobian(lambda w, x=x: function(w, x), weight) for x in batch])


def value(function, weight, batch):
    found = vmap(function, (None, 0))(weight, batch)
    return differ(found, torch.stack([function(weight, x) for x in batch]))


def jacobians(function, weight, batch):
    """Compare derivatives by `vmap` over `jacrev`."""
    found = vmap(jacrev(function), (None, 0))(weight, batch)
    return differ(found, by_hand(function, weight, batch))


def outside(function, weight, batch):
    """Compare derivatives where autograd lies outside of `vmap`."""
    leaf = weight.expand(len(batch), *weight.shape).requires_grad_()
    scalar = lambda w, x: function(w, x).sum()  # noqa: E731
    (found,) = torch.autograd.grad(vmap(scalar)(leaf, batch).sum(), leaf)
    return differ(found, by_hand(scalar, weight, batch))


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
    right = ((x * weight).cos() * weight).cos()
    return differ(*(torch.autograd.grad(each.sum(), weight)[0] for each in (found, right)))


class Tripled(torch.autograd.Function):
    """The identity with three times its gradient, and a rule for `vmap` that does not say so."""

    forward = staticmethod(lambda x: x.clone())
    setup_context = staticmethod(lambda ctx, inputs, output: None)
    backward = staticmethod(lambda ctx, grads: 3 * grads)
    vmap = staticmethod(lambda info, in_dims, x: (x.clone(), in_dims[0]))


torch.manual_seed(0)
IMAGES, TOKENS = torch.randn(1, 3, 2, 2), torch.randn(1, 4, 3).transpose(1, 2).unflatten(2, (2, 2))
MATRIX, ROW, ROWS = torch.randn(2, 3), torch.randn(3), torch.randn(4, 3)
SYSTEM = torch.randn(4, 1), torch.randn(4, 4, 4) + 4 * torch.eye(4)
WORDS, SIDES, lu = torch.tensor([[1, 2], [3, 1]]), ((3, 2), (1, 1)), torch.linalg.lu_factor
KNOWN = {
    "roll": (value, lambda w, x: torch.roll(w.sum() * x.sum(), 1), MATRIX, ROWS),
    "index_fill": (value, lambda w, x: w.index_fill(1, torch.tensor([0]), x.sum()), MATRIX, ROWS),
    "linalg_solve": (value, lambda w, x: torch.linalg.solve(x[None], w), *SYSTEM),
    "linalg_lu_solve": (
        *(jacobians, lambda w, x: torch.linalg.lu_solve(*lu(x[None]), w[None])[0, :, 0]),
        *SYSTEM,
    ),
    "lu_solve": (
        *(jacobians, lambda w, x: torch.lu_solve(w[None], *lu(x[None]))[0, :, 0]),
        *SYSTEM,
    ),
    "prelu": (jacobians, lambda w, x: F.prelu(x, w), ROW[:1], torch.randn(3, 3)),
    "cdist": (jacobians, lambda w, x: torch.cdist(x[None], w)[0], MATRIX, ROWS),
    "select_scatter": (
        *(outside, lambda w, x: torch.select_scatter(MATRIX * x, w, 0, 1) @ x),
        *(ROW, ROWS),
    ),
    "custom_function_call": (outside, lambda w, x: Tripled.apply(w) * x, ROW, ROWS),
    "as_strided": (outside, lambda w, x: x @ w.as_strided(*SIDES), MATRIX, ROWS),
    "as_strided_copy": (
        *(outside, lambda w, x: x @ torch.as_strided_copy(w, *SIDES)),
        *(MATRIX, ROWS),
    ),
    "embedding": (
        *(outside, lambda w, x: F.embedding(x, w * 2, padding_idx=1).sin()),
        *(torch.randn(6, 2), WORDS),
    ),
    **{name: (unseen, name) for name in ("requires_grad", "grad_fn", "is_leaf")},
    "while_loop": (while_loop_in_autograd,),
}
FAULTS = KNOWN | {
    "normalization, transposed": (normalized_alone, IMAGES, lambda x: x.flatten(2).mT),
    "normalization of tokens": (normalized_alone, TOKENS, nn.Identity()),
    "recurrent rule": (recurrent_rule,),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore")
def test_fault(fault):
    torch.manual_seed(0)
    there = MENDED.get(fault, (99, 0)) > HERE
    function, *arguments = FAULTS[fault]
    said = f"torch {torch.__version__} differs: see the top of this file"
    assert bool(function(*arguments)) == there, said


def test_each_function_that_is_refused_has_its_fault_here():
    getters = {each: each.__self__ for each in KNOWN_WRONG if each.__name__ == "__get__"}
    assert {getters.get(each, each).__name__ for each in KNOWN_WRONG} == KNOWN.keys()
