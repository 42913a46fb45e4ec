"""Per-sample gradients, three ways: one signature, one result.

Each function takes `(model, loss_fn, data, targets, *, wrt=None)` and returns a dictionary from
parameter name to a tensor `(B, *parameter.shape)`: the gradient of the loss of each sample alone.

- Names: those with `requires_grad`, in the order of `model.named_parameters()`; with `wrt`, those
  names, in its order, and only they are differentiated.
- Values: detached, with the parameter's dtype and device; zeros for a parameter that the loss
  does not reach; `(0, *parameter.shape)` for an empty batch.
- Batches: `data` and `targets` are tensors `(B, ...)`, or trees of such tensors: dictionaries and
  other mappings, lists, tuples and dataclasses, one in another. A mapping reaches the model as
  `model(**data)`, a tuple as `model(*data)`, anything else as `model(data)`. What has no dimension
  B, a number, a string, `None` or a tensor of shape (), is shared by all samples. `loss_fn` gets
  what the model returns, so that `lambda out, _: out.loss` will do where the labels are in `data`.
- Samples of unequal length are taken one after the other. A `PackedSequence` holds B of them, in
  the order in which they were packed. And where the forward of a model with an `nn.EmbeddingBag`
  takes an argument `offsets`, it divides the argument before it, as in that layer.
- The model that is handed in is the one that runs, as by hand. Its parameters, buffers, `.grad`,
  flags, modes, attributes and the containers in them are put back. What a forward keeps elsewhere,
  in a list that a hook fills, in its class, in a global, stays as the forward leaves it.
- Refused, each with one sentence: sizes that differ, by the paths of two tensors; what is neither a
  tensor nor a constant, and a list of B constants; an unknown name in `wrt`, a loss that is not a
  scalar, BatchNorm in training mode, a model that lies in several processes, and random numbers in
  the forward when nothing says how samples share them.
"""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from helpers import legacy
from helpers.layers.recorder import per_sample_gradients
from helpers.transforms import batches, checks, derivatives, fallback, samples
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

    Slow, and right for every model that has a backward at all: the reference for the others.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a tree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.

    Returns:
        `{name: (B, *parameter.shape)}`; see the module's contract.

    Raises:
        TypeError: `data` or `targets` is no tree of tensors, or `wrt` is one string.
        ValueError: One of the refusals of the module's contract.
    """
    params, batch = prepare(model, data, targets, wrt)
    return derivatives.by_loop(sample_loss(loss_fn, batch), model, params, batch.leaves)


@torch.inference_mode(False)
def functorch_gradients(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tree,
    targets: Tree = None,
    *,
    wrt: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Compute per-sample gradients with functorch's `make_functional_with_buffers`, as in 2022.

    Deprecated since torch 2.0, and here to be compared and to port old code from. Where torch no
    longer has it, `helpers.legacy` stands in. For new code take `func_gradients`.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a tree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.

    Returns:
        `{name: (B, *parameter.shape)}`; see the module's contract.

    Raises:
        TypeError: `data` or `targets` is no tree of tensors, or `wrt` is one string.
        ValueError: One of the refusals of the module's contract.
    """
    params, batch = prepare(model, data, targets, wrt)

    def loop() -> dict[str, Tensor]:
        return derivatives.by_loop(sample_loss(loss_fn, batch), model, params, batch.leaves)

    fmodel, refused = None, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # that it is deprecated is said above
            fmodel, *_ = legacy.functorch().make_functional_with_buffers(
                model, disable_autograd_tracking=True
            )
    except Exception as error:  # whatever a model holds may refuse
        refused = " ".join(f"{type(error).__name__}: {error}".split())
    if fmodel is None:
        grads = loop()
        fallback.warn(
            "the samples were taken one after the other, which is slower: functorch makes a copy "
            f"of the model, which this one refuses ({refused})"
        )
        return grads
    # Functions that close over the model, such as a loss, would read what the copy never wrote.
    fmodel.stateless_model = model

    # The functional model takes all parameters, by position: these are led as everywhere.
    own = dict(model.named_parameters())
    every = [own[name] for name in fmodel.param_names]
    buffers = [*model.buffers()]

    def compute_loss(_: nn.Module, *sample: Tensor) -> Tensor:
        one, target = batch.of_one(sample)
        predictions = batches.call(functools.partial(fmodel, every, buffers), one)
        return checks.check_scalar(loss_fn(predictions, target))

    return samples.vmapped(
        compute_loss, model, params, batch.leaves, transform=grad, otherwise=loop
    )


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
) -> dict[str, Tensor]:
    """Compute per-sample gradients with `torch.func`: `vmap` over `grad`.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a tree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.
        chunk_size: How many samples to differentiate at a time; `None` means all. It bounds the
            memory of intermediate values, not that of the result.
        randomness: What samples share when the forward draws random numbers: `"error"` refuses,
            `"different"` draws for each sample, `"same"` draws once.
        out: `{name: (B, *parameter.shape)}`, tensors to write the result into, for example what
            an earlier call returned; `None` means new ones. Each has a storage of its own: no
            two are views of one tensor. What is known of layers (`helpers.layers`) is written
            straight into them, after one ordinary forward and backward for all samples, so that
            no second copy of the result ever exists; what is not known comes as without `out`.

    Returns:
        `{name: (B, *parameter.shape)}`; see the module's contract. With `out`, its tensors.

    Raises:
        TypeError: `data` or `targets` is no tree of tensors, `wrt` is one string, or `out` is no
            dictionary of tensors.
        ValueError: One of the refusals of the module's contract, a `chunk_size` below 1, an
            unknown `randomness`, or an `out` that does not fit the result.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> data, labels = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
        >>> gradients = func_gradients(model, nn.functional.cross_entropy, data, labels)
        >>> {name: tuple(tensor.shape) for name, tensor in gradients.items()}
        {'weight': (4, 2, 3), 'bias': (4, 2)}
    """
    params, batch = prepare(model, data, targets, wrt)
    checks.check_options(chunk_size, randomness)
    loss = sample_loss(loss_fn, batch)
    if out is not None:
        checks.check_out(out, params, len(batch), model=model, **batch.tensors)
        out = {name: out[name] for name in params}

        @fallback.warning_once
        def write() -> None:
            chunks = per_sample_gradients(
                loss, model, params, batch.leaves, chunk_size, randomness=randomness
            )
            for part, found in chunks:
                found.write({name: tensor[part] for name, tensor in out.items()})

        if len(batch) and params:
            write()
        return out

    def loop() -> dict[str, Tensor]:
        return derivatives.by_loop(loss, model, params, batch.leaves, randomness=randomness)

    grads = samples.vmapped(
        loss,
        model,
        params,
        batch.leaves,
        transform=grad,
        otherwise=loop,
        chunk_size=chunk_size,
        randomness=randomness,
    )
    owners: set[int] = set()
    for name, tensor in grads.items():
        address = tensor.untyped_storage().data_ptr()
        if address in owners or 0 in tensor.stride():  # those of a sum, say, are views of one
            grads[name] = tensor.clone(memory_format=torch.contiguous_format)
        owners.add(address)
    return grads


def prepare(
    model: nn.Module, data: Tree, targets: Tree, wrt: Iterable[str] | None
) -> tuple[dict[str, Tensor], Batch]:
    """Check the input, choose the parameters, and take the batch apart."""
    checks.check_model(model)
    batch = batches.take(model, data=data, targets=targets)
    return checks.select_parameters(model, wrt), batch


def sample_loss(loss_fn: LossFn, batch: Batch) -> Callable[..., Tensor]:
    """Make the loss a function of one sample's leaves, as `helpers.transforms.samples` takes it."""

    def compute_loss(model: nn.Module, *sample: Tensor) -> Tensor:
        data, targets = batch.of_one(sample)
        return checks.check_scalar(loss_fn(batches.call(model, data), targets))

    return compute_loss
