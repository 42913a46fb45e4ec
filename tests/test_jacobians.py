"""What Jacobians promise besides their values, and the way from flat to named."""

import pytest
import torch
from torch import Tensor, nn

from helpers.jacobians import func_jacobians, loop_jacobians, unflatten_jacobians
from tests.support.zoo import Apply, make

every_method = pytest.mark.parametrize("method", [loop_jacobians, func_jacobians])


@every_method
def test_results_without_a_number(method):
    case = make("frozen")
    assert method(case.model, case.data[:0]).shape == (0, 3, 3 + 9)
    case.model.requires_grad_(False)
    assert method(case.model, case.data).shape == (3, 3, 0)
    assert method(nn.Flatten(), case.data).shape == (3, 3, 0)


@every_method
def test_an_empty_batch_leaves_everything_as_it_was(method):
    case = make("buffer counts")

    def run(self: Apply, inputs: Tensor) -> Tensor:
        Apply.calls = getattr(Apply, "calls", 0) + 1
        return self.inner(inputs)

    method(Apply(run, inner=case.model), case.data[:0])
    assert case.model.calls == 1
    assert not hasattr(Apply, "calls")


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_is_that_of_the_parameters(dtype, method):
    assert method(nn.Linear(3, 2).to(dtype), torch.ones(2, 3, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("lead", [(2, 4), (), (0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("name", ["scalars", "frozen", "grouped"])
def test_unflatten_is_the_way_back(name, lead):
    model = make(name).model
    wanted = {n: p for n, p in model.named_parameters() if p.requires_grad}
    flat = torch.randn(*lead, sum(parameter.numel() for parameter in wanted.values()))
    named = unflatten_jacobians(flat, model)
    assert list(named) == list(wanted)
    for n, parameter in wanted.items():
        assert named[n].shape == (*lead, *parameter.shape)
    blocks = [block.reshape(*lead, wanted[n].numel()) for n, block in named.items()]
    assert torch.equal(torch.cat(blocks, dim=-1), flat)
    flat.zero_()
    assert not any(block.any() for block in named.values()), "copies, not views"
