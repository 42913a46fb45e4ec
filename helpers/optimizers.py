"""Optimizers as functions: of parameters, gradients and a state to new parameters and a new state.

A transform takes no `torch.optim.Optimizer`, which writes in place; here nothing is. One step:
`step(params, grads, state, lr=..., weight_decay=...)`, the first three `{name: tensor}`; the state
is `{}` at first, later what the last step returned. `lr` and `weight_decay` are numbers or tensors
`()`, so that under `vmap` each network may have its own.
"""

from collections.abc import Callable

from torch import Tensor

from helpers.transforms.numbers import wide

Tensors = dict[str, Tensor]
Rate = float | Tensor
Step = Callable[..., tuple[Tensors, Tensors]]


def sgd_step(
    params: Tensors, grads: Tensors, state: Tensors, *, lr: Rate, weight_decay: Rate = 0.0
) -> tuple[Tensors, Tensors]:
    """Step as `torch.optim.SGD(lr=lr, weight_decay=weight_decay)` does; the state stays `{}`."""
    return {name: p - lr * (grads[name] + weight_decay * p) for name, p in params.items()}, state


def momentum_step(
    params: Tensors,
    grads: Tensors,
    state: Tensors,
    *,
    lr: Rate,
    weight_decay: Rate = 0.0,
    momentum: float = 0.9,
) -> tuple[Tensors, Tensors]:
    """Step as `torch.optim.SGD` with `momentum` does; the state is the speed of each parameter."""
    speed = {
        name: momentum * state.get(name, 0.0) + (grads[name] + weight_decay * p)
        for name, p in params.items()
    }
    return {name: p - lr * speed[name] for name, p in params.items()}, speed


def adam_step(
    params: Tensors,
    grads: Tensors,
    state: Tensors,
    *,
    lr: Rate,
    weight_decay: Rate = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tensors, Tensors]:
    """Step as `torch.optim.Adam` does (Kingma and Ba 2015, arXiv:1412.6980, Algorithm 1).

    The state has two means of each parameter, under `("mean", name)` and `("square", name)`, and
    under `("steps", name)` how many steps it has had, in float32 at least. A complex parameter is
    refused with a ValueError.
    """
    new_params, new_state = {}, {}
    for name, p in params.items():
        if p.is_complex():
            raise ValueError(f"adam_step takes real parameters, got {name} of {p.dtype}")
        # In half precision, 0.999 would be 1, and the count would end at 256 or 2048.
        steps = state.get(("steps", name), p.new_zeros((), dtype=wide(p.dtype))) + 1
        g = grads[name] + weight_decay * p
        mean = betas[0] * state.get(("mean", name), 0.0) + (1 - betas[0]) * g
        square = betas[1] * state.get(("square", name), 0.0) + (1 - betas[1]) * g * g
        root = (square / (1 - betas[1] ** steps)).sqrt()
        change = lr * (mean / (1 - betas[0] ** steps)) / (root + eps)
        new_params[name] = p - change.to(p.dtype)
        new_state |= {("steps", name): steps, ("mean", name): mean, ("square", name): square}
    return new_params, new_state
