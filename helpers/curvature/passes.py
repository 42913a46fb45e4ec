"""From the parameters to the outputs of a model, and back: what all products are made of."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from helpers import jacobians
from helpers.curvature import push
from helpers.curvature.parameter_vectors import Vector, check_vector
from helpers.transforms import batches, checks, fallback, loop, randomness, samples
from helpers.transforms.batches import Batch
from helpers.transforms.known_wrong import JACREV, OUTSIDE, Refusal
from helpers.transforms.numbers import wide
from helpers.transforms.sequences import Sequences
from helpers.transforms.switches import plain_attention

Weigh = Callable[..., Tensor]
"""`weigh(outputs, pushed, *sample)` of one sample: what goes back through its Jacobian."""


def mean(
    model: nn.Module,
    batch: Batch,
    vector: Vector,
    chunk_size: int | None,
    weigh: Weigh,
    loss: Callable[..., Tensor] | None = None,
) -> Vector:
    """Compute the mean over the samples of `J_i^T weigh(outputs_i, J_i vector, *sample_i)`.

    With a loss, a function of a sample, J_i is its gradient in place of the model's Jacobian, and
    what was pushed forward goes back as it is.

    In half precision, model and samples are taken in float32, and the mean alone is rounded.
    """
    checks.check_options(chunk_size)
    check_vector(vector, checks.select_parameters(model))
    if not len(batch):
        raise ValueError("data must hold a sample at least, got none")
    dtypes = {name: tensor.dtype for name, tensor in vector.items()}
    vector = {name: _wide(tensor.detach()) for name, tensor in vector.items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in vector.items()}
    step, transformable = chunk_size or len(batch), True
    for chunk in (batch[start : start + step] for start in range(0, len(batch), step)):
        if transformable:
            try:
                product = _transformed(model, chunk, vector, weigh, loss)
            except Exception as error:
                if not fallback.leads_to_loop(error):
                    raise
                transformable, failed = False, error
        if not transformable:
            slowly = partial(_by_jacobians, model, chunk, vector, weigh, loss)
            product = fallback.to_loop(slowly, failed, model) if loss else slowly()
        total = {name: tensor + product[name] for name, tensor in total.items()}
    return {name: (tensor / len(batch)).to(dtypes[name]) for name, tensor in total.items()}


def _wide(tensor: Tensor) -> Tensor:
    """Return a tensor in the dtype in which numbers are added up, indices as they are."""
    return tensor.to(wide(tensor.dtype)) if tensor.is_floating_point() else tensor


def _transformed(
    model: nn.Module,
    chunk: Batch,
    vector: Vector,
    weigh: Weigh,
    loss: Callable[..., Tensor] | None,
) -> Vector:
    """Go from the parameters to the outputs of all samples, and back."""
    if len(chunk.tensors) < len(chunk.leaves):
        raise Refusal("samples of unequal length")
    run = samples.functional(loss or _outputs(chunk), model, vector, JACREV, OUTSIDE)
    with samples.running(model, vector, run) as (_, params, buffers), plain_attention:
        fixed = {name: _wide(buffer) for name, buffer in buffers.items()}
        for name, parameter in model.named_parameters():
            if name not in params and parameter.dtype != wide(parameter.dtype):
                fixed[name] = _wide(parameter.detach())
        params = {name: _wide(tensor) for name, tensor in params.items()}

        def outputs_of(params: dict[str, Tensor]) -> Tensor:
            leaves = tuple(map(_wide, chunk.leaves))
            return vmap(run, in_dims=(None, None, *chunk.in_dims))(params, fixed, *leaves)

        outputs, pull = vjp(outputs_of, params)
        pushed = push.push(outputs, pull, vector)
        weighed = pushed if loss else each(weigh, outputs, pushed, *chunk.leaves)
        (product,) = pull(weighed)
        push.check_pushed(pushed, weighed, product, vector)
    return {name: tensor.detach() for name, tensor in product.items()}


def _by_jacobians(
    model: nn.Module,
    chunk: Batch,
    vector: Vector,
    weigh: Weigh,
    loss: Callable[..., Tensor] | None,
) -> Vector:
    """Do the same with Jacobians of the chunk, `(B, Y, *shape)`; of a loss, Y is 1."""
    if loss:
        found = loop.gradients(loss, model, checks.select_parameters(model, vector), chunk.leaves)
        blocks = {name: _wide(gradient)[:, None] for name, gradient in found.items()}
    else:
        every = jacobians.unflatten_jacobians(jacobians.func_jacobians(model, chunk), model)
        blocks = {name: _wide(every[name]) for name in vector}
    pushed = sum(
        torch.einsum("byp,p->by", block.reshape(*block.shape[:2], -1), vector[name].reshape(-1))
        for name, block in blocks.items()
    )
    weighed = pushed
    if not loss:
        outputs: list[Tensor] = [pushed] * len(chunk)
        loop.for_each(_outputs(chunk), model, every, chunk.leaves, outputs.__setitem__)
        sample = [leaf if isinstance(leaf, Sequences) else _wide(leaf) for leaf in chunk.leaves]
        weighed = each(weigh, _wide(torch.stack(outputs).detach()), pushed, *sample)
    return {name: torch.einsum("by...,by->...", block, weighed) for name, block in blocks.items()}


def _outputs(batch: Batch) -> Callable[..., Tensor]:
    """Make a function that runs the model on one sample."""
    return lambda model, *sample: _of_one(batches.call(model, batch.of_one(sample)[0]))


def _of_one(outputs: Tensor) -> Tensor:
    """Return what a model gave for a batch of one without the dimension B."""
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != (1,):
        what = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"the model must return outputs (B, Y), got {what} for a batch of one")
    if outputs.is_complex():
        raise ValueError(
            f"the model must return real outputs, got {outputs.dtype}: the curvature of complex "
            "numbers is not defined here"
        )
    return outputs.squeeze(0)


def each(function: Callable[..., Tensor], *batch: Tensor | Sequences) -> Tensor:
    """Call a function for each sample: with `vmap`, or in a loop if it cannot be transformed."""
    device = batch[0].device
    before = randomness.random_state(device)
    try:
        if not any(isinstance(leaf, Sequences) for leaf in batch):
            return vmap(function)(*batch)
    except RuntimeError as error:
        if "randomness error mode" in str(error):
            raise ValueError(randomness.RANDOMNESS) from error
        if not fallback.leads_to_loop(error):
            raise
    results = torch.stack([function(*sample) for sample in zip(*batch, strict=True)])
    if not randomness.alike(before, randomness.random_state(device)):
        raise ValueError(randomness.RANDOMNESS)
    return results
