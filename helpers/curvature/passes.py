"""From the parameters to the outputs of a model and back: the passes behind all products."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from helpers.curvature import push
from helpers.numbers import wide
from helpers.transforms import batches, checks, fallback, loop, samples
from helpers.transforms.batches import Batch
from helpers.transforms.known_wrong import JACREV, OUTSIDE, Refusal
from helpers.transforms.sequences import Sequences
from helpers.transforms.switches import plain_attention

Function = Callable[..., Tensor]
Vector = dict[str, Tensor]


def check_dictionary(name: str, vector: Vector) -> None:
    """Check that a vector is a dictionary of tensors."""
    values = vector.values() if isinstance(vector, dict) else [vector]
    if not (isinstance(vector, dict) and all(isinstance(t, Tensor) for t in values)):
        got = ", ".join(sorted({type(value).__name__ for value in values}))
        raise TypeError(f"{name} must be a dictionary {{name: tensor}}, got {got}")


def _check_vector(vector: Vector, params: Vector) -> None:
    """Check that each part of a vector fits the parameter of that name."""
    check_dictionary("vector", vector)
    if not vector:
        raise ValueError("vector must hold at least 1 parameter, got none")
    for name, tensor in vector.items():
        if name not in params:
            raise ValueError(
                f"vector names {name!r}, which is not a trainable parameter of this model: those "
                f"are {', '.join(params)}"
            )
        expected, got = (
            f"shape {(*t.shape,)}, {t.dtype}, {t.device}" for t in (params[name], tensor)
        )
        if got != expected or tensor.is_complex():
            raise ValueError(f"vector[{name!r}] must be real, of {expected}, got {got}")


@fallback.warning_once
def mean(
    model: nn.Module, batch: Batch, vector: Vector, chunk_size: int | None, apply_hessian: Function
) -> Vector:
    """Average `J_i^T apply_hessian(outputs_i, J_i vector, *sample_i)` over the samples.

    In half precision, `vmap` runs in float32 and rounds only the mean; the loop does not.
    """

    def function(model: nn.Module, *sample: Tensor) -> Tensor:
        outputs = batches.call(model, batch.of_one(sample)[0])
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != (1,) or outputs.is_complex():
            got = getattr(outputs, "shape", type(outputs).__name__), getattr(outputs, "dtype", "")
            raise ValueError("the model must return real outputs (B, ...), got {} {}".format(*got))
        return outputs.squeeze(0)

    checks.check_options(chunk_size)
    _check_vector(vector, checks.select_parameters(model))
    if not len(batch):
        raise ValueError("data must hold at least 1 sample, got none")
    dtypes = {name: tensor.dtype for name, tensor in vector.items()}
    vector = {name: _wide(tensor.detach()) for name, tensor in vector.items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in vector.items()}
    step, failed = chunk_size or len(batch), None
    for chunk in (batch[start : start + step] for start in range(0, len(batch), step)):
        arguments = model, function, chunk, vector, apply_hessian
        if failed is None:
            try:
                product = _transformed(*arguments)
            except Exception as error:
                if not fallback.leads_to_loop(error):
                    raise
                failed = error
        if failed is not None:
            product = fallback.to_loop(partial(_one_by_one, *arguments), failed, model)
        total = {name: tensor + product[name] for name, tensor in total.items()}
    return {name: (tensor / len(batch)).to(dtypes[name]) for name, tensor in total.items()}


def _transformed(
    model: nn.Module, function: Function, chunk: Batch, vector: Vector, apply_hessian: Function
) -> Vector:
    """Go from the parameters to the outputs of all samples, and back."""
    if len(chunk.tensors) < len(chunk.leaves):
        raise Refusal("samples of unequal length")
    run = samples.functional(function, model, vector, JACREV, OUTSIDE)
    running = samples.running(model, vector, run, apply_hessian)
    with running as (_, params, buffers), plain_attention:
        fixed = {name: _wide(buffer) for name, buffer in buffers.items()}
        for name, parameter in model.named_parameters():
            if name not in params and parameter.dtype != wide(parameter.dtype):
                fixed[name] = _wide(parameter.detach())
        params = {name: _wide(tensor) for name, tensor in params.items()}
        leaves = tuple(map(_wide, chunk.leaves))
        run_all = vmap(run, in_dims=(None, None, *chunk.in_dims))
        outputs, pull = vjp(lambda params_now: run_all(params_now, fixed, *leaves), params)
        pushed = push.push(outputs, pull, vector)
        cotangents = vmap(apply_hessian)(outputs, pushed, *chunk.leaves)
        (product,) = pull(cotangents)
        push.check_pushed(pushed, cotangents, product, vector)
    return {name: tensor.detach() for name, tensor in product.items()}


def _one_by_one(
    model: nn.Module, function: Function, chunk: Batch, vector: Vector, apply_hessian: Function
) -> Vector:
    """Do the same for a sample at a time, with a backward pass for each output."""
    parameters, products = dict(model.named_parameters()), []
    leaves = [parameters[name] for name in vector]

    def backward(outputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        rows = [
            loop.by_backward(output, leaves, retain_graph=True) for output in outputs.reshape(-1)
        ]
        blocks = [_wide(torch.stack(output)).flatten(1) for output in zip(*rows, strict=True)]
        return _wide(outputs.detach()), blocks

    def store(index: int, result: tuple[Tensor, list[Tensor]]) -> None:
        outputs, blocks = result
        pairs = zip(blocks, vector.values(), strict=True)
        pushed = sum(block @ tensor.reshape(-1) for block, tensor in pairs)
        sample = (_wide(leaf[index]) for leaf in chunk.leaves)
        cotangents = apply_hessian(outputs, pushed.view_as(outputs), *sample).reshape(-1)
        products.append([cotangents @ block for block in blocks])

    # All trainable ones: a checkpoint may need gradients of unselected parameters.
    names = checks.select_parameters(model)
    loop.for_each(function, model, names, chunk.leaves, store, backward=backward)
    summed = (sum(pairs) for pairs in zip(*products, strict=True))
    return {n: total.view(t.shape) for (n, t), total in zip(vector.items(), summed, strict=True)}


def _wide(tensor: Tensor | Sequences) -> Tensor | Sequences:
    """Return a tensor in the dtype for sums, or unchanged if it holds no floats."""
    numbers = isinstance(tensor, Tensor) and tensor.is_floating_point()
    return tensor.to(wide(tensor.dtype)) if numbers else tensor
