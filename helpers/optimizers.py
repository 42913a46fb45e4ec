"""Optimizer steps as functions, for transforms, under which `torch.optim` cannot write in place.

`step(params, grads, state, lr=..., weight_decay=...)` returns new parameters and a new state. The
first three arguments are `{name: tensor}`; the state is `{}` at first, later what the last step
returned. `lr` and `weight_decay` are numbers or tensors `()`, one for each network under `vmap`.
"""

from collections.abc import Callable

from torch import Tensor

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
    """Step as `torch.optim.SGD` with `momentum` does; the state holds the velocities."""
    speed = {
        name: momentum * state.get(name, 0.0) + (grads[name] + weight_decay * p)
        for name, p in params.items()
    }
    return {name: p - lr * speed[name] for name, p in params.items()}, speed
