"""What Jacobians promise besides their values, and the way from flat to named."""

import pytest
import torch
from torch import nn

from helpers.jacobians import func_jacobians, loop_jacobians, unflatten_jacobians
from tests.support.zoo import make

every_method = pytest.mark.parametrize("method", [loop_jacobians, func_jacobians])


@every_method
def test_shapes_dtypes_and_an_empty_batch(method):
    case, counting = make("frozen"), make("buffer counts")
    assert method(case.model, case.data[:0]).shape == (0, 3, 3 + 9)
    case.model.requires_grad_(False)
    assert method(case.model, case.data).shape == (3, 3, 0)
    assert method(nn.Flatten(), case.data).shape == (3, 3, 0)
    method(counting.model, counting.data[:0])
    assert counting.model.calls == 1, "as it was"
    for dtype in (torch.float32, torch.bfloat16):
        assert method(nn.Linear(3, 2).to(dtype), torch.ones(2, 3, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("lead", [(2, 4), (), (0, 3), (2, 3, 4)], ids=str)
def test_unflatten_copies_behind_any_dimensions(lead):
    model = make("frozen").model  # 0.bias and 2.weight are not
    flat = torch.randn(*lead, 3 + 9)
    named = unflatten_jacobians(flat, model)
    assert {name: block.shape for name, block in named.items()} == {
        "0.bias": (*lead, 3),
        "2.weight": (*lead, 3, 3),
    }
    assert torch.equal(named["2.weight"].flatten(-2), flat[..., 3:])
    flat.zero_()
    assert not any(block.any() for block in named.values()), "copies, not views"
