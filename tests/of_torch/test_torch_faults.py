"""Faults of torch that helpers go around: each is there, or a release has mended it.

A test that turns red means that the torch at hand has mended a fault, or brought one back. Write
the first release without it into `MENDED`, say so in the entry of the reference that it belongs to,
and see whether the way around it can go. Faults that the reference alone tells of are tested there.
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
    """Compare the gradient with respect to one image with that in a batch of two equal ones."""
    norm = nn.BatchNorm2d(3).eval()

    def gradient(batch):
        features = behind(norm(batch)).flatten(1)
        number = features[0] @ torch.arange(12.0).cos()
        (of_batch,) = torch.autograd.grad(number, batch)
        return of_batch[0]

    together = gradient(images.detach().expand(2, -1, -1, -1).requires_grad_())
    alone = gradient(images.requires_grad_())
    return differ(alone, together)


def recurrent_rule():
    gru, state = nn.GRU(2, 3), torch.zeros(1, 3)
    match = "Batching rule not implemented for aten::gru.input"
    with torch.no_grad(), pytest.raises(RuntimeError, match=match):
        vmap(lambda row: gru(row, state)[0])(torch.randn(4, 5, 2))
    return True


# What follows takes a function of a weight and one sample.


def by_hand(function, weight, batch):
    """Compute the Jacobians with respect to the weight, one sample after the other."""
    rows = []
    for x in batch:
        rows.append(jacobian(lambda w, x=x: function(w, x), weight))
    return torch.stack(rows)


def values(function, weight, batch):
    """Compare what `vmap` computes."""
    found = vmap(function, (None, 0))(weight, batch)
    return differ(found, torch.stack([function(weight, x) for x in batch]))


def jacobians(function, weight, batch):
    """Compare derivatives by `vmap` over `jacrev`."""
    found = vmap(jacrev(function), (None, 0))(weight, batch)
    return differ(found, by_hand(function, weight, batch))


def outside(function, weight, batch):
    """Compare derivatives where autograd lies outside of `vmap`."""

    def number(w, x):
        return function(w, x).sum()

    weights = weight.expand(len(batch), *weight.shape).requires_grad_()  # one for each sample
    (found,) = torch.autograd.grad(vmap(number)(weights, batch).sum(), weights)
    return differ(found, by_hand(number, weight, batch))


def unseen(name):
    """Tell whether a tensor under `vmap` shows nothing of a graph outside of it."""
    rows = torch.randn(3, requires_grad=True).sin()
    seen = []

    def look(row):
        seen.append(getattr(row, name))
        return row

    vmap(look)(rows)
    if name == "grad_fn":  # which is another one for each row
        return seen == [None]
    return seen != [getattr(rows[0], name)]


def while_loop_in_autograd():
    """Compare the gradient of two steps with that of the same steps by hand."""
    x = torch.randn(3)
    weight = torch.randn(3, requires_grad=True)

    def body(i, y):
        return i + 1, (y * weight).cos()

    _, by_loop = while_loop(lambda i, y: i < 2, body, (torch.tensor(0), x))
    expected = ((x * weight).cos() * weight).cos()
    (found,) = torch.autograd.grad(by_loop.sum(), weight)
    (right,) = torch.autograd.grad(expected.sum(), weight)
    return differ(found, right)


class Tripled(torch.autograd.Function):
    """The identity with three times its gradient, and a rule for `vmap` that does not say so."""

    forward = staticmethod(lambda x: x.clone())
    setup_context = staticmethod(lambda ctx, inputs, output: None)
    backward = staticmethod(lambda ctx, grads: 3 * grads)
    vmap = staticmethod(lambda info, in_dims, x: (x.clone(), in_dims[0]))


def lu_solve(matrix, columns):
    factors, pivots = torch.linalg.lu_factor(matrix[None])
    return torch.linalg.lu_solve(factors, pivots, columns[None])[0, :, 0]


def old_lu_solve(matrix, columns):
    factors, pivots = torch.linalg.lu_factor(matrix[None])
    return torch.lu_solve(columns[None], factors, pivots)[0, :, 0]


def doubled_words(table, words):
    return F.embedding(words, table * 2, padding_idx=1).sin()


torch.manual_seed(0)
IMAGES, TOKENS = torch.randn(1, 3, 2, 2), torch.randn(1, 4, 3).transpose(1, 2).unflatten(2, (2, 2))
MATRIX, ROW, ROWS = torch.randn(2, 3), torch.randn(3), torch.randn(4, 3)
COLUMNS, SQUARES = torch.randn(4, 1), torch.randn(4, 4, 4) + 4 * torch.eye(4)
TABLE, WORDS = torch.randn(6, 2), torch.tensor([[1, 2], [3, 1]])
FIRST = torch.tensor([0])
# How to compare, a function of a weight and a sample, a weight, and a batch.
OF_FUNCTIONS = {
    "roll": (values, lambda w, x: torch.roll(w.sum() * x.sum(), 1), MATRIX, ROWS),
    "index_fill": (values, lambda w, x: w.index_fill(1, FIRST, x.sum()), MATRIX, ROWS),
    "linalg_solve": (values, lambda w, x: torch.linalg.solve(x[None], w), COLUMNS, SQUARES),
    "linalg_lu_solve": (jacobians, lambda w, x: lu_solve(x, w), COLUMNS, SQUARES),
    "lu_solve": (jacobians, lambda w, x: old_lu_solve(x, w), COLUMNS, SQUARES),
    "prelu": (jacobians, lambda w, x: F.prelu(x, w), ROW[:1], torch.randn(3, 3)),
    "cdist": (jacobians, lambda w, x: torch.cdist(x[None], w)[0], MATRIX, ROWS),
    "select_scatter": (
        outside,
        lambda w, x: torch.select_scatter(MATRIX * x, w, 0, 1) @ x,
        ROW,
        ROWS,
    ),
    "custom_function_call": (outside, lambda w, x: Tripled.apply(w) * x, ROW, ROWS),
    "as_strided": (outside, lambda w, x: x @ w.as_strided((3, 2), (1, 1)), MATRIX, ROWS),
    "as_strided_copy": (
        outside,
        lambda w, x: x @ torch.as_strided_copy(w, (3, 2), (1, 1)),
        MATRIX,
        ROWS,
    ),
    "embedding": (outside, doubled_words, TABLE, WORDS),
}
KNOWN = OF_FUNCTIONS | {
    "requires_grad": (unseen, "requires_grad"),
    "grad_fn": (unseen, "grad_fn"),
    "is_leaf": (unseen, "is_leaf"),
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
    mended = fault in MENDED and MENDED[fault] <= HERE
    show, *arguments = FAULTS[fault]
    is_there = bool(show(*arguments))
    assert is_there != mended, f"torch {torch.__version__} differs: see the top of this file"


def test_each_function_that_is_refused_has_its_fault_here():
    names = set()
    for function in KNOWN_WRONG:
        if function.__name__ == "__get__":  # of an attribute, whose name it does not have
            function = function.__self__
        names.add(function.__name__)
    assert names == KNOWN.keys()
