"""Train many networks at once, each on its own batches, and run them all on the same inputs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap, grad, vjp, vmap

from helpers.ensembles.stacks import Ensemble
from helpers.optimizers import Step, Tensors
from helpers.transforms import checks
from helpers.transforms.batches import Batch, Tree, call, mapped, tensors_in
from helpers.transforms.known_wrong import VMAP, Refusal, Watched
from helpers.transforms.recurrence import RECURRENT
from helpers.transforms.samples import graph, running, standing_in


def draw_orders(seeds: Iterable[int], size: int, batch_size: int, steps: int) -> Tensor:
    """Draw which samples each network sees in each step.

    Args:
        seeds: M integers, one per network.
        size: N, the number of samples.
        batch_size: B, at most N.
        steps: The number of steps.

    Returns:
        Indices `(M, steps, B)`, int64, on the CPU. Each epoch is a new permutation; samples that
        do not fill a batch are dropped.

    Raises:
        ValueError: `batch_size` is not from 1 to N.
    """
    if not 1 <= batch_size <= size:
        raise ValueError(f"batch_size must be from 1 to N = {size}, got {batch_size}")
    per_epoch = size // batch_size
    orders = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        epochs = [torch.randperm(size, generator=generator) for _ in range(steps // per_epoch + 1)]
        batches = [epoch[: per_epoch * batch_size].view(-1, batch_size) for epoch in epochs]
        orders.append(torch.cat(batches)[:steps])
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
) -> Ensemble:
    """Train each network on batches of its own.

    Args:
        ensemble: M networks, which are not changed.
        loss_fn: `loss_fn(predictions, targets)`, given a batch, returns a scalar.
        data: `(N, ...)`, on the device of the networks, or a pytree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        order: `(M, steps, B)`, indices of samples: what `draw_orders` returns.
        step: `sgd_step` or `momentum_step` of `helpers.optimizers`, or a similar function.
        lr: The learning rate; of all, or `(M,)`, one for each network.
        weight_decay: Likewise.

    Returns:
        The trained networks, with their buffers as the last forward pass left them.

    Raises:
        TypeError: `data` or `targets` is not a pytree of tensors.
        ValueError: Samples differ in length, `order` or a rate has the wrong form, all parameters
            are frozen, one has hooks, the loss is no scalar, or `vmap` gets the forward pass wrong.
        RuntimeError: `vmap` refuses the forward pass, which draws random numbers, for example.
    """
    batch, model, size = _batch_of(data=data, targets=targets), ensemble.model, len(ensemble)
    of_form = order.dim() == 3 and len(order) == size and order.dtype in (torch.int64, torch.int32)
    if not of_form or not bool(((order >= 0) & (order < len(batch))).all()):
        raise ValueError(f"order must be ({size}, steps, B), indices in [0, {len(batch)})")
    if not ensemble.params:
        raise ValueError("the ensemble has no parameter to train: all are frozen")
    like = next(iter(ensemble.params.values())).real
    options = {"dtype": like.dtype, "device": like.device}
    rates = [torch.as_tensor(rate, **options).detach() for rate in (lr, weight_decay)]
    if any(rate.shape not in ((), (size,)) for rate in rates):
        raise ValueError(f"lr and weight_decay must be one number or {size}, one for each network")

    def advance(
        params: Tensors, buffers: Tensors, state: Tensors, leaves: tuple, *rates: Tensor
    ) -> tuple[Tensors, Tensors, Tensors]:
        def compute_loss(params: Tensors) -> tuple[Tensor, Tensors]:
            x, y = batch.trees([leaf.clone() for leaf in leaves])
            # A forward may write into buffers, which under `grad` must be tensors made inside.
            own_buffers = {name: buffer.clone() for name, buffer in buffers.items()}

            def forward() -> tuple[Tensor, Tensors]:
                loss = checks.check_scalar(loss_fn(call(model, x), y), batch_label="a batch")
                now = _tensors_of(model)  # a forward pass may rebind buffers
                leaf_ids = {id(getattr(node, "variable", None)) for node in graph(loss)}
                in_loss.extend(name for name in params if id(now[name]) in leaf_ids)
                return loss, own_buffers | {name: now[name] for name in own_buffers if name in now}

            return _run_member(model, params | own_buffers, forward)

        # A parameter that the loss does not reach has no `.grad`, and `torch.optim` leaves it as it
        # is, without weight decay. A transform gives zeros.
        in_loss: list[str] = []
        grads, buffers = grad(compute_loss, has_aux=True)(params)
        trained, grads = ({name: tensors[name] for name in in_loss} for tensors in (params, grads))
        trained, new_state = step(trained, grads, state, lr=rates[0], weight_decay=rates[1])
        return params | trained, buffers, state | new_state

    params, buffers, state = ensemble.params, ensemble.buffers, {}
    rates = [rate.expand(size) for rate in rates]
    # State that a forward pass keeps on modules, such as a count or a cache, starts anew.
    with _explained(), running(model, ensemble.params, loss_fn):
        for indices in order.to(batch.leaves[0].device).unbind(dim=1):  # (M, B)
            leaves = batch[indices].leaves
            params, buffers, state = vmap(advance)(params, buffers, state, leaves, *rates)
    return Ensemble(model, params, buffers)


def predict(ensemble: Ensemble, inputs: Tree) -> Any:
    """Run every network on the same inputs.

    Args:
        ensemble: M networks, which are not changed.
        inputs: `(N, ...)`, or a pytree of such tensors.

    Returns:
        `(M, N, ...)`, detached; for a model that returns several tensors, in the same structure.

    Raises:
        TypeError: `inputs` is not a pytree of tensors.
        ValueError: Samples are of unequal length, or `vmap` gets the forward pass wrong.
        RuntimeError: `vmap` refuses the forward pass, which draws random numbers, for example.
    """
    batch, model = _batch_of(inputs=inputs), ensemble.model
    # vmap has a rule for recurrent layers only when they are differentiated.
    recurrent = any(isinstance(module, RECURRENT) for module in model.modules())

    def run(params: Tensors, buffers: Tensors) -> Any:
        def compute(params: Tensors) -> Any:
            tensors = params | {name: buffer.clone() for name, buffer in buffers.items()}
            return _run_member(model, tensors, lambda: call(model, *batch.whole()))

        return _map_tensors(
            Tensor.detach, vjp(compute, params)[0] if recurrent else compute(params)
        )

    with _explained(), running(model, ()):
        return vmap(run)(ensemble.params, ensemble.buffers)


def _batch_of(**trees: Tree) -> Batch:
    batch = Batch(**trees)
    if len(batch.tensors) < len(batch.leaves):
        raise ValueError("samples of unequal length cannot be batched: pad them")
    return batch


def _run_member(model: nn.Module, tensors: Tensors, function: Callable[[], Any]) -> Any:
    """Call a function that runs the model, with the tensors of one network swapped in."""
    model_tensors = _tensors_of(model)
    with Watched(VMAP), standing_in(model_tensors, tensors):
        # New tensors, since the model gets its own ones back.
        value = _map_tensors(lambda tensor: tensor.view_as(tensor), function())
    names = {id(tensor): name for name, tensor in model_tensors.items()}
    for tensor in map(debug_unwrap, tensors_in(value)):
        for node in graph(tensor):
            if name := names.get(id(getattr(node, "variable", None))):
                raise ValueError(
                    f"the model holds a value computed from {name} of the first network: compute "
                    "it in forward"
                )
    return value


def _tensors_of(model: nn.Module) -> Tensors:
    """Return a model's parameters and buffers, buffers under all of their names."""
    return dict(model.named_parameters()) | dict(model.named_buffers(remove_duplicate=False))


def _map_tensors(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    return mapped(lambda _, leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, tree, "")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        raise ValueError(f"these networks cannot be batched: {refusal}") from refusal
