"""What Jacobians promise besides their values."""

import pytest
import torch
from torch import nn

from helpers.jacobians import func_jacobians, loop_jacobians
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
