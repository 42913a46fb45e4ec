"""What Jacobians promise besides their values, and the way from flat to named."""

import pytest
import torch
from torch import nn

from helpers.jacobians import func_jacobians, loop_jacobians, unflatten_jacobians
from tests.support.zoo import Case, make, squared

every_method = pytest.mark.parametrize("method", [loop_jacobians, func_jacobians])


@every_method
def test_results_without_a_number(method):
    case = make("frozen")
    assert method(case.model, case.data[:0]).shape == (0, 3, 3 + 9)
    case.model.requires_grad_(False)
    assert method(case.model, case.data).shape == (3, 3, 0)
    assert method(nn.Flatten(), case.data).shape == (3, 3, 0)
    counting = make("buffer counts")
    method(counting.model, counting.data[:0])
    assert counting.model.calls == 1


@every_method
def test_the_dtype_is_that_of_the_parameters(method):
    for dtype in (torch.float32, torch.bfloat16):
        case = Case(nn.Linear(3, 2).to(dtype), torch.ones(2, 3, dtype=dtype), None, squared)
        assert method(case.model, case.data).dtype == dtype


@pytest.mark.parametrize("lead", [(2, 4), (5,), (), (0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("case", ["scalars", "frozen", "grouped"])
def test_unflatten_is_the_way_back(case, lead):
    model = make(case).model
    wanted = {n: p for n, p in model.named_parameters() if p.requires_grad}
    count = sum(parameter.numel() for parameter in wanted.values())
    flat = torch.randn(*lead, count)
    named = unflatten_jacobians(flat, model)
    assert list(named) == list(wanted)
    for name, parameter in wanted.items():
        assert named[name].shape == (*lead, *parameter.shape)
    blocks = [block.reshape(*lead, wanted[n].numel()) for n, block in named.items()]
    assert torch.equal(torch.cat(blocks, dim=-1), flat)
    flat.zero_()
    assert not any(block.any() for block in named.values()), "copies, not views"
