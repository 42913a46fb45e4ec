"""Gradients through a training, against finite differences and one plain `vjp` of all steps."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.nn.utils.parametrizations import weight_norm

from helpers import benchmark
from helpers.metagradients import metagradient

close = functools.partial(torch.testing.assert_close, rtol=1e-6, atol=1e-8)


def training(momentum: float, steps: int, hidden: int = 4):
    """Return a step, a start, the weights, the batches and what is measured."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2)).double()
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 2

    def loss(params: dict[str, Tensor], weights: Tensor, batch: Tensor) -> Tensor:
        each = F.cross_entropy(functional_call(model, params, x[batch]), y[batch], reduction="none")
        return (weights[batch] * each).mean()

    def step(state, weights, batch):
        params, speeds = state
        grads = grad(loss)(params, weights, batch)
        next_params, next_speeds = {}, {}
        for name, parameter in params.items():
            speed = momentum * speeds[name] + grads[name] + 0.01 * parameter  # weight decay
            next_params[name], next_speeds[name] = parameter - 0.05 * speed, speed
        return next_params, next_speeds

    def measure(state):
        return functional_call(model, state[0], x[:5]).square().sum(dim=1)

    params = dict(model.named_parameters())  # they require a gradient, as a model's do
    start = params, {name: torch.zeros_like(parameter) for name, parameter in params.items()}
    batches = torch.randint(12, (steps, 6))
    return step, start, torch.rand(12, dtype=torch.float64) + 0.5, batches, measure


def through(step, start, weights, batches, measure):
    for batch in batches:
        start = step(start, weights, batch)
    return measure(start)


# 7 steps are parts of 3, 3 and 1.
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_that_of_finite_differences_and_of_all_steps_at_once(momentum, steps):
    step, start, weights, batches, measure = training(momentum, steps)
    numbers, gradient = metagradient(step, start, weights, batches, measure, chunk_size=2)
    assert not numbers.requires_grad
    assert not gradient.requires_grad
    run = functools.partial(through, step, start, batches=batches, measure=measure)
    whole, pull = vjp(run, weights)
    close(numbers, whole.detach())
    close(gradient, vmap(pull)(torch.eye(5, dtype=torch.float64))[0].detach())
    way = torch.randn_like(weights)
    differences = (run(weights + 1e-5 * way) - run(weights - 1e-5 * way)) / 2e-5
    close(gradient @ way, differences.detach())
    one = metagradient(step, start, weights, batches, lambda state: measure(state).sum())
    close(one[0], numbers.sum())
    close(one[1], gradient.sum(dim=0))


def test_it_holds_the_graph_of_about_the_root_of_the_steps():
    given = training(0.0, 144, hidden=300)
    peak = benchmark.memory(lambda: metagradient(*given)).peak
    whole = benchmark.memory(lambda: vjp(lambda w: through(*given[:2], w, *given[3:]), given[2]))
    assert peak < whole.peak / 3


def test_weight_norm_is_refused_whose_second_derivative_torch_gets_wrong():
    layer = weight_norm(nn.Linear(2, 2))
    start = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def step(state, weights, batch):
        loss = lambda s: (weights[batch] * functional_call(layer, s, torch.ones(1, 2))).sum()  # noqa: E731
        slopes = grad(loss)(state)
        return {name: value - 0.1 * slopes[name] for name, value in state.items()}

    with pytest.raises(ValueError, match="weight_norm"):
        metagradient(step, start, torch.ones(2), [0, 1], lambda state: state["bias"].sum())
