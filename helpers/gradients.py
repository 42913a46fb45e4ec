"""Per-sample gradients, two ways: one signature, one result.

Both functions take `(model, loss_fn, data, targets, *, wrt=None)` and return a dictionary from
parameter name to a tensor `(B, *parameter.shape)`: the gradient of the loss of each sample alone.

- Names: all with `requires_grad`, in the order of `model.named_parameters()`; with `wrt`, those
  names, in its order, and only they are differentiated.
- Values: detached, with the parameter's dtype and device; zeros for a parameter that the loss
  does not reach; `(0, *parameter.shape)` for an empty batch.
- Batches: `data` and `targets` are tensors `(B, ...)`, or pytrees of such tensors: dictionaries and
  other mappings, lists, tuples and dataclasses, nested. A mapping reaches the model as
  `model(**data)`, a tuple as `model(*data)`, anything else as `model(data)`. Leaves without a
  dimension B (numbers, strings, `None`, tensors of shape ()) are shared by all. `loss_fn` gets what
  the model returns, so `lambda out, _: out.loss` works if the labels are in `data`.
- Samples of unequal length are processed one at a time. A `PackedSequence` holds B of them, in
  the order in which they were packed. If `forward` of a model with an `nn.EmbeddingBag` takes an
  argument `offsets`, it splits the argument before it, as in that layer.
- Your model itself runs, not a copy. Its buffers, `.grad`, flags, modes, attributes
  and the containers in them are restored, but not its random generators; writes to parameters
  persist, with a warning, as does what a forward pass keeps elsewhere (in a class, a global).
- Refused, each with one sentence: differing batch sizes, naming two tensors; leaves that are
  neither tensors nor constants; lists of B constants; an unknown name in `wrt`, a loss that is not
  a scalar, BatchNorm in training mode, a model spread over several processes, and random numbers in
  the forward pass when nothing says how samples share them.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from helpers.layers.per_sample import PerSampleGradients
from helpers.layers.recorder import per_sample_gradients
from helpers.numbers import differences
from helpers.transforms import batches, checks, fallback, samples
from helpers.transforms import loop as loops
from helpers.transforms.batches import Batch, Tree

LossFn = Callable[[Any, Any], Tensor]


@torch.inference_mode(False)
def loop_gradients(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tree,
    targets: Tree = None,
    *,
    wrt: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Compute per-sample gradients one sample at a time, with plain autograd.

    Slow, but correct for any model that autograd differentiates correctly, so it is the reference
    for the other ways. Where autograd itself is wrong, so is the loop: a forward pass that takes a
    Laplacian through `nn.LayerNorm` is one case (lesson 14; tests/test_derivatives.py has a list).

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a pytree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.

    Returns:
        `{name: (B, *parameter.shape)}`; see the module's contract.

    Raises:
        TypeError: `data` or `targets` is not a pytree of tensors, or `wrt` is one string.
        ValueError: One of the refusals of the module's contract.
    """
    params, batch = prepare(model, data, targets, wrt)
    loss = functools.partial(sample_loss, loss_fn, batch)
    return loops.gradients(loss, model, params, batch.leaves, warn=True)


@torch.inference_mode(False)
def func_gradients(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tree,
    targets: Tree = None,
    *,
    wrt: Iterable[str] | None = None,
    chunk_size: int | None = None,
    randomness: str = "error",
    out: dict[str, Tensor] | None = None,
    check: bool = False,
) -> dict[str, Tensor]:
    """Compute per-sample gradients with `torch.func`: `vmap` over `grad`.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a pytree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.
        chunk_size: How many samples to differentiate at a time; `None` means all. It bounds the
            memory of intermediate values, not that of the result.
        randomness: What to do if the forward pass draws random numbers: `"error"` refuses,
            `"different"` draws for each sample, `"same"` draws once for all.
        out: `{name: (B, *parameter.shape)}`, tensors to write the result into, each in memory of
            its own; `None` means new ones. Gradients of known layers (`helpers.layers`) are written
            straight into them, so that no second copy of the result ever exists.
        check: Compare the first and the last sample with the loop, and use the loop for all if they
            differ by more than the square root of the dtype's `eps`: a guard against unknown bugs
            in torch that costs two samples of the loop.

    Returns:
        `{name: (B, *parameter.shape)}`; see the module's contract. With `out`, its tensors.

    Raises:
        TypeError: `data` or `targets` is not a pytree of tensors, `wrt` is a string, or `out` is
            not a dictionary of tensors.
        ValueError: One of the refusals of the module's contract, a `chunk_size` below 1, an
            unknown `randomness`, an `out` that does not fit the result, or a `check` where random
            numbers may be drawn.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> data, labels = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
        >>> gradients = func_gradients(model, nn.functional.cross_entropy, data, labels)
        >>> {name: tuple(tensor.shape) for name, tensor in gradients.items()}
        {'weight': (4, 2, 3), 'bias': (4, 2)}
    """
    params, batch = prepare(model, data, targets, wrt)
    checks.check_options(chunk_size, randomness)
    if check and randomness != "error":
        raise ValueError("check cannot compare samples that draw random numbers")
    loss = functools.partial(sample_loss, loss_fn, batch)
    loop = functools.partial(loops.gradients, loss, model, params, randomness=randomness)
    options = {"chunk_size": chunk_size, "randomness": randomness}
    if out is not None:
        _check_out(out, params, len(batch), model=model, **batch.tensors)
        grads = {name: out[name] for name in params}
        if len(batch) and params:
            _write(grads, per_sample_gradients(loss, model, params, batch.leaves, **options))
    else:
        compute_grads = grad(samples.functional(loss, model, params))
        in_dims = (None, None, *batch.in_dims)
        compute_sample_grads = vmap(compute_grads, in_dims=in_dims, randomness=randomness)
        options["otherwise"] = functools.partial(loop, batch.leaves)
        grads = samples.batched(compute_sample_grads, model, params, batch.leaves, **options)
    if len(batch) and not any(rows[0].any() or rows.any() for rows in grads.values()):
        loop(batch[:1].leaves, warn=True)
    if check and (disagreement := _difference(grads, loop, batch)):
        fallback.warn(f"torch.vmap and the loop differ, so the loop was used: {disagreement}")
        expected = loop(batch.leaves)
        grads = expected if out is None else {n: out[n].copy_(rows) for n, rows in expected.items()}
    return grads


def _check_out(out: dict[str, Tensor], like: dict[str, Tensor], size: int, **read: Any) -> None:
    """Check that `out` fits the result and shares no memory with the inputs."""
    if not isinstance(out, dict):
        raise TypeError(f"out must be a dictionary of tensors by name, got {type(out).__name__}")
    if set(out) != set(like):
        raise ValueError(
            f"out must have the names {', '.join(like) or '(none)'}, "
            f"got {', '.join(map(str, out)) or '(none)'}"
        )
    owners: dict[int, str] = {}
    for name, value in read.items():
        tensors = [value] if isinstance(value, Tensor) else [*value.parameters(), *value.buffers()]
        strided = (tensor for tensor in tensors if tensor.layout is torch.strided)
        owners.update((tensor.untyped_storage().data_ptr(), name) for tensor in strided)
    for key, parameter in like.items():
        name, buffer = f"out[{key!r}]", out[key]
        if not isinstance(buffer, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(buffer).__name__}")
        for quality, expected, got in (
            ("the shape", (size, *parameter.shape), tuple(buffer.shape)),
            ("dtype", parameter.dtype, buffer.dtype),
            ("device", parameter.device, buffer.device),
        ):
            if got != expected:
                raise ValueError(f"{name} must have {quality} {expected}, got {got}")
        if buffer.requires_grad or buffer.is_inference():
            raise ValueError(
                f"{name} must not require a gradient or be made in inference mode: "
                "use torch.empty outside that mode"
            )
        if any(n > 1 and step == 0 for n, step in zip(buffer.shape, buffer.stride(), strict=True)):
            raise ValueError(f"{name} must have memory for each number, got an expanded tensor")
        address = buffer.untyped_storage().data_ptr()
        if buffer.numel() and address in owners:
            raise ValueError(f"{name} must have its own memory, got that of {owners[address]}")
        owners[address] = name


@fallback.warning_once
def _write(grads: dict[str, Tensor], chunks: Iterable[tuple[slice, PerSampleGradients]]) -> None:
    """Write gradients, which are computed chunk by chunk here, into tensors `(B, *shape)`."""
    for rows, computed in chunks:
        computed.write({name: tensor[rows] for name, tensor in grads.items()})
        del computed  # free it before the next chunk


def _difference(
    grads: dict[str, Tensor], loop: Callable[..., dict[str, Tensor]], batch: Batch
) -> str:
    """Compare the first and the last sample with the loop; `""` if they agree."""
    ends = torch.tensor([0, len(batch) - 1]) if len(batch) > 1 else slice(None)
    expected = loop(batch[ends].leaves)
    off = differences({name: grads[name][ends] for name in expected}, expected)
    return ", ".join(f"{name} by {error:.1e} of the largest entry" for name, error in off.items())


def prepare(
    model: nn.Module, data: Tree, targets: Tree, wrt: Iterable[str] | None
) -> tuple[dict[str, Tensor], Batch]:
    """Check the arguments, select the parameters, and flatten the batch."""
    checks.check_model(model)
    batch = batches.take(model, data=data, targets=targets)
    return checks.select_parameters(model, wrt), batch


def sample_loss(loss_fn: LossFn, batch: Batch, model: nn.Module, *sample: Tensor) -> Tensor:
    """Compute the loss of one sample, given its leaves."""
    if isinstance(loss_fn, type) and issubclass(loss_fn, nn.Module):
        raise TypeError(f"loss_fn is the class {loss_fn.__name__}: pass {loss_fn.__name__}()")
    data, targets = batch.of_one(sample)
    return checks.check_scalar(loss_fn(batches.call(model, data), targets))
