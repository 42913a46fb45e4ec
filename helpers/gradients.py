"""Per-sample gradients, three ways: one signature, one result.

Each function takes `(model, loss_fn, data, targets, *, wrt=None)` and returns a dictionary from
parameter name to a tensor `(B, *parameter.shape)`: the gradient of the loss of each sample alone.

- Names: those with `requires_grad`, in the order of `model.named_parameters()`; with `wrt`, those
  names, in its order, and only they are differentiated.
- Values: detached, with the parameter's dtype and device; zeros for a parameter that the loss
  does not reach; `(0, *parameter.shape)` for an empty batch.
- The model that is handed in is the one that runs, as by hand. Its parameters, buffers, `.grad`,
  flags, modes, attributes and the containers in them are put back. What a forward keeps elsewhere,
  in a list that a hook fills, in its class, in a global, stays as the forward leaves it.
- Refused, each with one sentence: sizes of `data` and `targets` that differ, an unknown name in
  `wrt`, a loss that is not a scalar, BatchNorm in training mode, a model that lies in several
  processes, and random numbers in the forward when nothing says how samples share them.
"""

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from helpers import legacy
from helpers.layers.recorder import per_sample_gradients
from helpers.transforms import checks, derivatives, fallback

LossFn = Callable[[Tensor, Tensor], Tensor]


@torch.inference_mode(False)
def loop_gradients(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tensor,
    targets: Tensor,
    *,
    wrt: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Compute per-sample gradients one sample at a time, with plain autograd.

    Slow, and right for every model that has a backward at all: the reference for the others.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`.
        targets: `(B, ...)`.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.

    Returns:
        `{name: (B, *parameter.shape)}`; see the module's contract.

    Raises:
        TypeError: `data` or `targets` is no tensor, or `wrt` is one string.
        ValueError: One of the refusals of the module's contract.
    """
    params = prepare(model, data, targets, wrt)
    return derivatives.by_loop(sample_loss(loss_fn), model, params, (data, targets))


@torch.inference_mode(False)
def functorch_gradients(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tensor,
    targets: Tensor,
    *,
    wrt: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Compute per-sample gradients with functorch's `make_functional_with_buffers`, as in 2022.

    Deprecated since torch 2.0, and here to be compared and to port old code from. Where torch no
    longer has it, `helpers.legacy` stands in. For new code take `func_gradients`.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`.
        targets: `(B, ...)`.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.

    Returns:
        `{name: (B, *parameter.shape)}`; see the module's contract.

    Raises:
        TypeError: `data` or `targets` is no tensor, or `wrt` is one string.
        ValueError: One of the refusals of the module's contract.
    """
    params = prepare(model, data, targets, wrt)

    def loop() -> dict[str, Tensor]:
        return derivatives.by_loop(sample_loss(loss_fn), model, params, (data, targets))

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

    def compute_loss(_: nn.Module, sample: Tensor, target: Tensor) -> Tensor:
        prediction = fmodel(every, buffers, sample.unsqueeze(0))
        return checks.check_scalar(loss_fn(prediction, target.unsqueeze(0)))

    return derivatives.by_vmap(
        compute_loss, model, params, (data.detach(), targets), otherwise=loop
    )


@torch.inference_mode(False)
def func_gradients(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tensor,
    targets: Tensor,
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
        data: `(B, ...)`.
        targets: `(B, ...)`.
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
        TypeError: `data` or `targets` is no tensor, `wrt` is one string, or `out` is no
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
    params = prepare(model, data, targets, wrt)
    checks.check_chunk_size(chunk_size)
    checks.check_randomness(randomness)
    if out is not None:
        checks.check_out(out, params, len(data), model=model, data=data, targets=targets)
        out = {name: out[name] for name in params}
        batch = data.detach(), targets
        _write(sample_loss(loss_fn), model, params, batch, out, chunk_size, randomness)
        return out
    grads = derivatives.by_vmap(
        sample_loss(loss_fn),
        model,
        params,
        (data.detach(), targets),
        chunk_size=chunk_size,
        randomness=randomness,
    )
    return _apart(grads)


def _apart(grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give each gradient memory of its own: those of a sum, say, may be views of one tensor."""
    owners: set[int] = set()
    for name, tensor in grads.items():
        address = tensor.untyped_storage().data_ptr()
        if address in owners or 0 in tensor.stride():
            grads[name] = tensor.clone(memory_format=torch.contiguous_format)
        owners.add(address)
    return grads


@fallback.warning_once
def _write(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, Tensor],
    out: dict[str, Tensor],
    chunk_size: int | None,
    randomness: str,
) -> None:
    """Write gradients where they belong: from what layers saw, or else by `vmap` over `grad`."""
    if not len(batch[0]) or not params:
        return
    for part, found in per_sample_gradients(
        function, model, params, batch, chunk_size, randomness=randomness
    ):
        found.write({name: tensor[part] for name, tensor in out.items()})


def prepare(
    model: nn.Module, data: Tensor, targets: Tensor, wrt: Iterable[str] | None
) -> dict[str, Tensor]:
    """Check the input and choose the parameters."""
    checks.check_batch(data=data, targets=targets)
    checks.check_model(model)
    return checks.select_parameters(model, wrt)


def sample_loss(loss_fn: LossFn) -> Callable[..., Tensor]:
    """Make the loss a function of one sample, as `helpers.transforms.samples` takes it."""

    def compute_loss(model: nn.Module, sample: Tensor, target: Tensor) -> Tensor:
        return checks.check_scalar(loss_fn(model(sample.unsqueeze(0)), target.unsqueeze(0)))

    return compute_loss
