"""The methods under test, and an oracle for them that shares no code with helpers."""

import copy
import functools
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helpers.gradients import func_gradients, functorch_gradients, loop_gradients


def without_functorch(*args: object, **options: object) -> dict[str, Tensor]:
    """Call `functorch_gradients` as if torch no longer had functorch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "functorch", None)
        return functorch_gradients(*args, **options)


METHODS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "loop": loop_gradients,
    "functorch": functorch_gradients,
    "functorch gone": without_functorch,
    "func": func_gradients,
    "func in chunks of 1": functools.partial(func_gradients, chunk_size=1),
    "func in chunks of 2": functools.partial(func_gradients, chunk_size=2),
    "func in one large chunk": functools.partial(func_gradients, chunk_size=99),
}

# Largest difference over the largest entry of all gradients together. One rounding is 1e-16 in
# float64 and 6e-8 in float32; sums of at most a few thousand terms, summed in another order,
# leave some hundred of them.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5}


def oracle(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    data: Tensor,
    targets: Tensor,
    wrt: list[str] | None = None,
) -> dict[str, Tensor]:
    """Run a fresh float64 copy of the model per sample; read `.grad` after `.backward()`."""
    if wrt is None:
        wrt = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    rows: dict[str, list[Tensor]] = {name: [] for name in wrt}
    for index in range(len(data)):
        fresh = copy.deepcopy(model).double()
        parameters = dict(fresh.named_parameters())
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in wrt)
            parameter.grad = None
        sample, target = (
            t[index : index + 1].detach().to(torch.float64 if t.is_floating_point() else t.dtype)
            for t in (data, targets)
        )
        loss = loss_fn(fresh(sample), target)
        if loss.requires_grad:
            loss.backward()
        for name in wrt:
            gradient = parameters[name].grad
            rows[name].append(torch.zeros_like(parameters[name]) if gradient is None else gradient)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return {
        name: torch.stack([row.detach() for row in rows[name]])
        if rows[name]
        else torch.zeros((0, *shapes[name]), dtype=torch.float64)
        for name in wrt
    }


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Compare names and their order, shapes, and values relative to the largest of all."""
    assert list(got) == list(expected)
    assert {n: t.shape for n, t in got.items()} == {n: t.shape for n, t in expected.items()}
    largest = max((t.abs().max().item() for t in expected.values() if t.numel()), default=0.0)
    for name, tensor in got.items():
        torch.testing.assert_close(
            tensor.double(),
            expected[name],
            rtol=0,
            atol=tolerance * (largest or 1.0),
            msg=lambda text, name=name: f"{name}: {text}",
        )
