"""Per-sample gradients, two ways: one signature, one result.

Both functions take `(model, loss_fn, data, targets, *, wrt=None)` and return a dictionary from
parameter name to a tensor `(B, *parameter.shape)`: the gradient of the loss of each sample alone.
Lesson 1 writes the loop in a few lines, lesson 3 the fast way, lesson 3b what else it takes.

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

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from helpers.layers.recorder import RecordedGradients
from helpers.numbers import differences
from helpers.transforms import checks, fallback, switches
from helpers.transforms.batches import Tree
from helpers.transforms.problem import Gradients

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
    Laplacian through `nn.LayerNorm` is one case (lesson 14). tests/of_torch/test_derivatives.py has
    a list.

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
    problem = Gradients.of_loss(model, loss_fn, data, targets, wrt)
    if problem.is_empty:
        return problem.nothing()
    with problem.prepared():
        grads = problem.looped(problem.batch.leaves)
    problem.warn_if_constant()
    return grads


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
            in torch that costs two samples of the loop. TF32 is switched off during the call.

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
    # Recorded layers write their gradients straight into `out`; the fastest way makes new tensors.
    of_loss = Gradients.of_loss if out is None else RecordedGradients.of_loss
    problem = of_loss(model, loss_fn, data, targets, wrt, randomness)
    checks.check_options(chunk_size, randomness)
    if check and randomness != "error":
        raise ValueError("check cannot compare samples that draw random numbers")
    # In TF32, `vmap` and the loop would differ in every convolution on a GPU.
    with switches.full_float32 if check else nullcontext():
        if out is None:
            grads = problem.collect(chunk_size)
        else:
            _check_out(out, problem.params, len(problem), model=model, **problem.batch.tensors)
            grads = {name: out[name] for name in problem.params}
            _write(grads, problem, chunk_size)
        problem.warn_if_constant()
        if check:
            _check_with_loop(problem, grads)
    return grads


def _check_with_loop(problem: Gradients, grads: dict[str, Tensor]) -> None:
    """Put the loop's gradients into `grads` if those of the first and the last sample differ."""
    loop = Gradients(
        problem.function, problem.model, problem.params, problem.batch, parts=problem.parts
    )
    disagreement = _difference(grads, loop)
    if not disagreement:
        return
    fallback.warn(f"the fast way and the loop differ, so the loop was used: {disagreement}")
    with loop.prepared():
        expected = loop.looped(loop.batch.leaves)
    for name, tensor in expected.items():
        grads[name].copy_(tensor)


def _check_out(out: dict[str, Tensor], like: dict[str, Tensor], size: int, **read: Any) -> None:
    """Check that `out` fits the result and shares no memory with the inputs."""
    if not isinstance(out, dict):
        raise TypeError(f"out must be a dictionary of tensors by name, got {type(out).__name__}")
    if set(out) != set(like):
        raise ValueError(
            f"out must have the names {', '.join(like) or '(none)'}, "
            f"got {', '.join(map(str, out)) or '(none)'}"
        )
    # Whose memory lies at an address: that of the model, of the batch, or of an earlier tensor.
    owners: dict[int, str] = {}
    for name, value in read.items():
        tensors = [value] if isinstance(value, Tensor) else [*value.parameters(), *value.buffers()]
        for tensor in tensors:
            if tensor.layout is torch.strided:
                owners[tensor.untyped_storage().data_ptr()] = name
    for key, parameter in like.items():
        buffer = out[key]
        name = f"out[{key!r}]"
        _check_tensor(name, buffer, (size, *parameter.shape), parameter)
        address = buffer.untyped_storage().data_ptr()
        if buffer.numel() and address in owners:
            raise ValueError(f"{name} must have its own memory, got that of {owners[address]}")
        owners[address] = name


def _check_tensor(name: str, buffer: Any, shape: tuple[int, ...], parameter: Tensor) -> None:
    """Check that gradients of a parameter can be written into a tensor."""
    if not isinstance(buffer, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(buffer).__name__}")
    if tuple(buffer.shape) != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(buffer.shape)}")
    if buffer.dtype != parameter.dtype:
        raise ValueError(f"{name} must have dtype {parameter.dtype}, got {buffer.dtype}")
    if buffer.device != parameter.device:
        raise ValueError(f"{name} must have device {parameter.device}, got {buffer.device}")
    if buffer.requires_grad or buffer.is_inference():
        raise ValueError(
            f"{name} must not require a gradient or be made in inference mode: "
            "use torch.empty outside that mode"
        )
    for length, step in zip(buffer.shape, buffer.stride(), strict=True):
        if length > 1 and step == 0:
            raise ValueError(f"{name} must have memory for each number, got an expanded tensor")


def _write(grads: dict[str, Tensor], problem: Gradients, chunk_size: int | None) -> None:
    """Write gradients into tensors `(B, *shape)`, chunk by chunk."""
    slices = problem.slices(chunk_size)
    if problem.is_empty:
        return
    with problem.prepared():
        for rows in slices:
            chunk = {name: tensor[rows] for name, tensor in grads.items()}
            problem.compute(rows).write(chunk)


def _difference(grads: dict[str, Tensor], loop: Gradients) -> str:
    """Compare the first and the last sample with the loop; `""` if they agree."""
    if loop.is_empty:
        return ""
    # One index, of the only sample, would have no dimension B.
    ends = torch.tensor([0, len(loop) - 1]) if len(loop) > 1 else slice(None)
    with loop.prepared():
        expected = loop.looped(loop.batch[ends].leaves)
    found = {name: grads[name][ends] for name in expected}
    texts = []
    for name, error in differences(found, expected).items():
        texts.append(f"{name} by {error:.1e} of the largest entry")
    return ", ".join(texts)
