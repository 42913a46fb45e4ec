"""Each network trained on batches of its own, and all run on the same inputs, at once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap, grad, vjp, vmap
from tqdm import tqdm

from helpers.ensembles.stacks import Ensemble
from helpers.optimizers import Step, Tensors
from helpers.transforms import checks
from helpers.transforms.batches import Batch, Tree, call, mapped, tensors_in
from helpers.transforms.known_wrong import VMAP, Refusal, Watched
from helpers.transforms.recurrence import RECURRENT
from helpers.transforms.samples import graph, running, standing_in


def draw_orders(
    seeds: Iterable[int], size: int, batch_size: int, steps: int, *, bootstrap: bool = False
) -> Tensor:
    """Draw which samples each network sees in each step, from a random stream for each seed.

    Args:
        seeds: M whole numbers, one for each network.
        size: N, how many samples there are.
        batch_size: B, how many a step takes, at most N.
        steps: How many steps there are.
        bootstrap: Whether a network has N samples drawn with replacement in the place of all.

    Returns:
        `(M, steps, B)`, int64, on the CPU. Each epoch goes through all samples of the network,
        in a new order; what is left at its end and fills no batch is left out.

    Raises:
        ValueError: There is no whole batch.
    """
    if not 1 <= batch_size <= size:
        raise ValueError(f"batch_size must be from 1 to the {size} samples, got {batch_size}")
    per_epoch = size // batch_size
    orders = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        own = torch.arange(size)
        if bootstrap:
            own = torch.randint(size, (size,), generator=generator)
        epochs = [
            own[torch.randperm(size, generator=generator)][: per_epoch * batch_size]
            for _ in range(-(-steps // per_epoch))
        ]
        batches = torch.cat([own[:0], *epochs]).view(-1, batch_size)
        orders.append(batches[:steps])
    return torch.stack(orders)


def train(
    ensemble: Ensemble,
    loss_fn: Callable[[Any, Any], Tensor],
    data: Tree,
    targets: Tree,
    order: Tensor,
    step: Step,
    *,
    lr: float | Tensor,
    weight_decay: float | Tensor = 0.0,
    chunk_size: int | None = None,
) -> Ensemble:
    """Train each network on batches of its own.

    Args:
        ensemble: M networks. It is not changed.
        loss_fn: `loss_fn(predictions, targets)`, given a batch, returns a scalar.
        data: `(N, ...)`, on the device of the networks, or a tree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        order: `(M, steps, B)`, indices of samples: what `draw_orders` returns.
        step: `sgd_step`, `momentum_step` or `adam_step` of `helpers.optimizers`, or another of
            their form.
        lr: The learning rate; of all, or `(M,)`, one for each network.
        weight_decay: Likewise.
        chunk_size: How many networks to train at a time, from the first step to the last; `None`
            means all. It bounds the memory beside the parameters themselves.

    Returns:
        The trained networks; buffers as the forwards left them (BatchNorm in training mode writes
        its running statistics). What else a forward keeps on modules starts anew in each call.

    Raises:
        ValueError: `order` is not of this form, `lr` or `weight_decay` is neither one number nor
            M, all parameters are frozen or one has hooks, the loss is no scalar, a batch size or
            chunk is refused, or a forward draws random numbers.
    """
    batch = _taken(chunk_size, data=data, targets=targets)
    model, size = ensemble.model, len(ensemble)
    _check_order(order, size, len(batch))
    if not ensemble.params:
        raise ValueError("the ensemble has no parameter to train: all are frozen")
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks:
            raise ValueError(f"{name} has hooks on its gradient, which are those of one network")
    like = next(iter(ensemble.params.values()))
    given = {"lr": lr, "weight_decay": weight_decay}
    rates = [_one_for_each(name, value, size, like) for name, value in given.items()]

    def advance(
        params: Tensors, buffers: Tensors, state: Tensors, leaves: tuple, *rates: Tensor
    ) -> tuple[Tensors, Tensors, Tensors]:
        def compute_loss(params: Tensors) -> tuple[Tensor, Tensors]:
            x, y = batch.trees([leaf.clone() for leaf in leaves])
            # A forward may write into buffers, which under `grad` must be tensors made inside.
            own = {name: buffer.clone() for name, buffer in buffers.items()}

            def forward() -> tuple[Tensor, Tensors]:
                loss = checks.check_scalar(loss_fn(call(model, x), y), given="a batch")
                now = _tensors_of(model)  # a forward may bind buffers anew
                met = {id(getattr(node, "variable", None)) for node in graph(loss)}
                reached.extend(name for name in params if id(now[name]) in met)
                return loss, own | {name: now[name] for name in own if name in now}

            return _run_member(model, params | own, forward)

        # A parameter that the loss does not reach has no `.grad`, and `torch.optim` leaves it as it
        # is, without weight decay. A transform gives zeros.
        reached: list[str] = []
        grads, buffers = grad(compute_loss, has_aux=True)(params)
        used, grads = ({name: each[name] for name in reached} for each in (params, grads))
        used, new_state = step(used, grads, state, lr=rates[0], weight_decay=rates[1])
        return params | used, buffers, state | new_state

    parts = [slice(i, i + (chunk_size or size)) for i in range(0, size, chunk_size or size)]
    done: list[tuple[Tensors, Tensors]] = []
    total = len(parts) * order.shape[1]
    with tqdm(total=total, desc=f"training {size} networks", delay=1, leave=False) as progress:
        for part in parts:
            params, buffers = (
                {name: tensor[part] for name, tensor in each.items()}
                for each in (ensemble.params, ensemble.buffers)
            )
            state: Tensors = {}
            own_rates = [rate[part] for rate in rates]
            # What a forward keeps on modules, a count or a cache say, starts anew for each chunk.
            with _explained(), running(model, ()):
                for indices in order[part].to(batch.leaves[0].device).unbind(dim=1):  # (m, B)
                    now = params, buffers, state, batch[indices].leaves, *own_rates
                    params, buffers, state = vmap(advance)(*now)
                    progress.update()
            done.append((params, buffers))
    params, buffers = (
        {name: torch.cat([each[name] for each in parts]) for name in parts[0]}
        for parts in zip(*done, strict=True)
    )
    return Ensemble(model, params, buffers)


def predict(ensemble: Ensemble, inputs: Tree, *, chunk_size: int | None = None) -> Any:
    """Run every network on the same inputs.

    Args:
        ensemble: M networks, in evaluation mode or without random numbers. They are not changed.
        inputs: `(N, ...)`, or a tree of such tensors.
        chunk_size: How many networks to run at a time; `None` means all.

    Returns:
        `(M, N, ...)`, detached; of a model that returns several tensors, these in what it returns.

    Raises:
        TypeError: `inputs` is no tree of tensors.
        ValueError: The chunk is refused, samples are of unequal length, or a forward draws random
            numbers.
    """
    batch, model = _taken(chunk_size, inputs=inputs), ensemble.model
    # For recurrent layers vmap has a rule only where they are differentiated.
    recurrent = any(isinstance(part, RECURRENT) for part in model.modules())

    def run(params: Tensors, buffers: Tensors) -> Any:
        own = {name: buffer.clone() for name, buffer in buffers.items()}

        def compute(params: Tensors) -> Any:
            return _run_member(model, params | own, lambda: call(model, *batch.whole()))

        with running(model, ()):  # put back after each chunk
            outputs = vjp(compute, params)[0] if recurrent else compute(params)
        return _each(Tensor.detach, outputs)

    with _explained():
        return vmap(run, chunk_size=chunk_size)(ensemble.params, ensemble.buffers)


def _taken(chunk_size: int | None, **trees: Tree) -> Batch:
    checks.check_options(chunk_size)
    batch = Batch(**trees)
    if len(batch.tensors) < len(batch.leaves):
        raise ValueError("samples of unequal length cannot be taken together: pad them")
    return batch


def _run_member(model: nn.Module, tensors: Tensors, function: Callable[[], Any]) -> Any:
    """Call a function that runs the model, while the model's tensors are those of a network."""
    own = _tensors_of(model)
    with Watched(VMAP), standing_in(own, tensors):
        # New tensors, since those of the model become its own again.
        value = _each(lambda tensor: tensor.view_as(tensor), function())
    names = {id(tensor): name for name, tensor in own.items()}
    for tensor in map(debug_unwrap, tensors_in(value)):
        for node in graph(tensor):
            if name := names.get(id(getattr(node, "variable", None))):
                raise ValueError(
                    f"the model holds what was computed from {name} of the first network, and is "
                    "not that of the others: compute it in the forward"
                )
    return value


def _tensors_of(model: nn.Module) -> Tensors:
    """Return the parameters and buffers of a model, a buffer by each of its names."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers(remove_duplicate=False))}


def _each(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    return mapped(lambda _, leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, tree, "")


@contextmanager
def _explained() -> Iterator[None]:
    """Raise what torch says of networks that it cannot run together as one sentence."""
    try:
        yield
    except (Refusal, RuntimeError) as error:
        said = str(error)
        if "randomness error mode" in said:
            raise ValueError(
                "a network draws random numbers (dropout in training mode?), which would not be "
                "those that it draws alone: call .eval() on all"
            ) from error
        if not isinstance(error, Refusal) and "vmap" not in said and "atching rule" not in said:
            raise
        by = "" if isinstance(error, Refusal) else " by torch.vmap"
        said = said.partition("\n")[0]
        raise ValueError(f"such networks cannot be taken together{by}: {said}") from error


def _check_order(order: Tensor, size: int, samples: int) -> None:
    if order.dim() != 3 or len(order) != size:
        got = tuple(order.shape)
        raise ValueError(f"order must be (M, steps, B) for M = {size} networks, got {got}")
    whole = order.dtype in (torch.int64, torch.int32)
    if not whole or not bool(((order >= 0) & (order < samples)).all()):
        got = f"{order.min().item()} to {order.max().item()}" if whole else order.dtype
        raise ValueError(
            f"order must hold indices of samples, whole numbers from 0 to {samples - 1}, got {got}"
        )


def _one_for_each(name: str, value: float | Tensor, size: int, like: Tensor) -> Tensor:
    """Return a number for each network, `(M,)`."""
    values = torch.as_tensor(value, dtype=like.dtype.to_real(), device=like.device).detach()
    if values.shape not in ((), (size,)):
        raise ValueError(
            f"{name} must be one number or {size}, one for each network, got {tuple(values.shape)}"
        )
    return values.expand(size)
