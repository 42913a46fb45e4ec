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
        logits = functional_call(model, params, x[batch])
        losses = F.cross_entropy(logits, y[batch], reduction="none")
        return (weights[batch] * losses).mean()

    def step(state, weights, batch):
        params, speeds = state
        grads = grad(loss)(params, weights, batch)
        next_params, next_speeds = {}, {}
        for name, parameter in params.items():
            speed = momentum * speeds[name] + grads[name] + 0.01 * parameter  # weight decay
            next_params[name] = parameter - 0.05 * speed
            next_speeds[name] = speed
        return next_params, next_speeds

    def measure(state):
        return functional_call(model, state[0], x[:5]).square().sum(dim=1)

    params = dict(model.named_parameters())  # they require a gradient, as a model's do
    speeds = {name: torch.zeros_like(parameter) for name, parameter in params.items()}
    batches = torch.randint(12, (steps, 6))
    weights = torch.rand(12, dtype=torch.float64) + 0.5
    return step, (params, speeds), weights, batches, measure


def through(step, start, weights, batches, measure):
    """Train, and measure the last state."""
    state = start
    for batch in batches:
        state = step(state, weights, batch)
    return measure(state)


# 7 steps are parts of 3, 3 and 1.
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_that_of_finite_differences_and_of_all_steps_at_once(momentum, steps):
    step, start, weights, batches, measure = training(momentum, steps)
    numbers, gradient = metagradient(step, start, weights, batches, measure, chunk_size=2)
    assert not numbers.requires_grad
    assert not gradient.requires_grad

    # All steps at once, whose graph is held as a whole.
    run = functools.partial(through, step, start, batches=batches, measure=measure)
    expected, pull = vjp(run, weights)
    (slopes,) = vmap(pull)(torch.eye(5, dtype=torch.float64))
    close(numbers, expected.detach())
    close(gradient, slopes.detach())

    # Two trainings with slightly different weights.
    direction = 1e-5 * torch.randn_like(weights)
    difference = run(weights + direction) - run(weights - direction)
    close(gradient @ direction, difference.detach() / 2, atol=1e-13)

    # A measure that is a scalar.
    sum_of, its_gradient = metagradient(step, start, weights, batches, lambda s: measure(s).sum())
    close(sum_of, numbers.sum())
    close(its_gradient, gradient.sum(dim=0))


def test_it_holds_the_graph_of_about_the_root_of_the_steps():
    step, start, weights, batches, measure = training(0.0, 144, hidden=300)
    run = functools.partial(through, step, start, batches=batches, measure=measure)
    held = benchmark.memory(lambda: metagradient(step, start, weights, batches, measure))
    whole = benchmark.memory(lambda: vjp(run, weights))
    assert held.peak < whole.peak / 3


def test_weight_norm_is_refused_whose_second_derivative_torch_gets_wrong():
    layer = weight_norm(nn.Linear(2, 2))
    start = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def step(state, weights, batch):
        def loss(state):
            return (weights[batch] * functional_call(layer, state, torch.ones(1, 2))).sum()

        slopes = grad(loss)(state)
        return {name: value - 0.1 * slopes[name] for name, value in state.items()}

    with pytest.raises(ValueError, match="weight_norm"):
        metagradient(step, start, torch.ones(2), [0, 1], lambda state: state["bias"].sum())


def adam(inside: bool):
    """Return Adam on a linear model one of whose inputs is always 0, with the root of two kinds."""
    torch.manual_seed(0)
    x = torch.randn(8, 3, dtype=torch.float64)
    x[:, 1] = 0  # such as a pixel that is black in every image
    y = torch.randn(8, 2, dtype=torch.float64)

    def loss(params: dict[str, Tensor], weights: Tensor, batch: Tensor) -> Tensor:
        residuals = x[batch] @ params["weight"].T + params["bias"] - y[batch]
        return (weights[batch] * residuals.square().sum(dim=1)).mean()

    def step(state, weights, batch):
        grads = grad(loss)(state["params"], weights, batch)
        after = {"params": {}, "m": {}, "v": {}}
        for name, gradient in grads.items():
            m = 0.9 * state["m"][name] + 0.1 * gradient
            v = 0.99 * state["v"][name] + 0.01 * gradient.square()
            root = (v + 1e-16).sqrt() if inside else v.sqrt() + 1e-8
            after["params"][name] = state["params"][name] - 0.01 * m / root
            after["m"][name], after["v"][name] = m, v
        return after

    params = {"weight": torch.randn(2, 3).double(), "bias": torch.randn(2).double()}
    start = {"params": params}
    for part in ("m", "v"):
        start[part] = {name: torch.zeros_like(value) for name, value in params.items()}
    batches = torch.arange(20).view(5, 4) % 8

    def measure(state):
        return state["params"]["weight"].square().sum()

    return step, start, torch.ones(8, dtype=torch.float64), batches, measure


def test_adam_with_a_gradient_of_0_is_refused_by_name_and_the_advice_is_right():
    with pytest.raises(ValueError, match=r'state\["v"\]\["weight"\].*\(v \+ eps\*\*2\)\.sqrt\(\)'):
        metagradient(*adam(inside=False))

    _, gradient = metagradient(*adam(inside=True))
    # Finite differences of the training as it was, with epsilon outside.
    step, start, weights, batches, measure = adam(inside=False)
    run = functools.partial(through, step, start, batches=batches, measure=measure)
    direction = 1e-5 * torch.randn_like(weights)
    difference = run(weights + direction) - run(weights - direction)
    close(gradient @ direction, difference / 2, atol=0, rtol=1e-5)


def test_a_measure_without_a_finite_slope_is_refused_by_name():
    step, start, weights, batches, _ = adam(inside=True)
    still = start["params"]["weight"][:, 1]  # of the input that is always 0: they do not move

    def distance(state):
        return (state["params"]["weight"][:, 1] - still).square().sum().sqrt()

    with pytest.raises(ValueError, match=r'measure.*state\["params"\]\["weight"\]'):
        metagradient(step, start, weights, batches, distance)
