"""Per-sample gradients, three ways: one signature, one result.

Each function takes `(model, loss_fn, data, targets, *, wrt=None)` and returns a dictionary from
parameter name to a tensor `(B, *parameter.shape)`: the gradient of the loss of each sample alone.

- Names: those with `requires_grad`, in the order of `model.named_parameters()`; with `wrt`, those
  names, in its order, and only they are differentiated.
- Values: detached, with the parameter's dtype and device; zeros for a parameter that the loss
  does not reach; `(0, *parameter.shape)` for an empty batch.
- The model is left as it was: parameters, buffers, mode, `.grad`.
- Refused, each with one sentence: sizes of `data` and `targets` that differ, an unknown name in
  `wrt`, a loss that is not a scalar, BatchNorm in training mode, and random numbers in the
  forward when nothing says how samples share them.
"""

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from helpers import checks, legacy, modules

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
    leaves = _prepare(model, data, targets, wrt)
    leaves = {name: parameter.requires_grad_() for name, parameter in leaves.items()}
    stand_in, buffers = modules.detached(model), dict(model.named_buffers())
    per_sample_grads = {
        name: leaf.new_zeros((len(data), *leaf.shape), requires_grad=False)
        for name, leaf in leaves.items()
    }
    for index in range(len(data) if leaves else 0):
        random_state = checks.random_state(data.device)
        with torch.enable_grad():
            # Each sample starts from the same buffers, whatever the forward writes into them.
            state = leaves | {name: buffer.clone() for name, buffer in buffers.items()}
            # Clones, since autograd does not save tensors that were made in inference mode.
            sample = data[index : index + 1].detach().clone()
            target = targets[index : index + 1].detach().clone()
            with modules.attributes_kept(stand_in):
                prediction = functional_call(stand_in, state, (sample,))
            loss = checks.check_scalar(loss_fn(prediction, target))
        if index == 0:
            checks.check_repeatable(random_state, data.device)
        if loss.requires_grad:
            grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            for per_sample_grad, sample_grad in zip(per_sample_grads.values(), grads, strict=True):
                per_sample_grad[index] = sample_grad
    return per_sample_grads


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
    selected = _prepare(model, data, targets, wrt)
    if len(data) == 0 or not selected:
        return _empty(selected, len(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # that it is deprecated is said above
        fmodel, params, buffers = legacy.functorch().make_functional_with_buffers(
            modules.detached(model), disable_autograd_tracking=True
        )
    fixed = dict(zip(fmodel.param_names, params, strict=True))

    def compute_loss(
        selected: dict[str, Tensor], buffers: tuple[Tensor, ...], sample: Tensor, target: Tensor
    ) -> Tensor:
        # The functional model takes all parameters, by position.
        params = tuple((fixed | selected).values())
        buffers = tuple(buffer.clone() for buffer in buffers)
        with modules.attributes_kept(fmodel):
            prediction = fmodel(params, buffers, sample.unsqueeze(0))
        return checks.check_scalar(loss_fn(prediction, target.unsqueeze(0)))

    batch = (data.detach(), targets)
    return _detach(modules.map_samples(grad(compute_loss), selected, buffers, batch))


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
) -> dict[str, Tensor]:
    """Compute per-sample gradients with `torch.func`: `vmap` over `grad` over `functional_call`.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`.
        targets: `(B, ...)`.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.
        chunk_size: How many samples to differentiate at a time; `None` means all. It bounds the
            memory of intermediate values, not that of the result.
        randomness: What samples share when the forward draws random numbers: `"error"` refuses,
            `"different"` draws for each sample, `"same"` draws once (on a GPU, for each chunk).

    Returns:
        `{name: (B, *parameter.shape)}`; see the module's contract.

    Raises:
        TypeError: `data` or `targets` is no tensor, or `wrt` is one string.
        ValueError: One of the refusals of the module's contract, a `chunk_size` below 1, or an
            unknown `randomness`.
    """
    selected = _prepare(model, data, targets, wrt)
    checks.check_chunk_size(chunk_size)
    if randomness not in ("error", "different", "same"):
        raise ValueError(f"randomness must be 'error', 'different' or 'same', got {randomness!r}")
    if len(data) == 0 or not selected:
        return _empty(selected, len(data))
    stand_in, buffers = modules.detached(model), dict(model.named_buffers())

    def compute_loss(
        params: dict[str, Tensor], buffers: dict[str, Tensor], sample: Tensor, target: Tensor
    ) -> Tensor:
        # Without a clone, a forward that writes into a buffer would write into the model's.
        state = params | {name: buffer.clone() for name, buffer in buffers.items()}
        with modules.attributes_kept(stand_in):
            prediction = functional_call(stand_in, state, (sample.unsqueeze(0),))
        return checks.check_scalar(loss_fn(prediction, target.unsqueeze(0)))

    per_sample_grads = modules.map_samples(
        grad(compute_loss),
        selected,
        buffers,
        (data.detach(), targets),
        chunk_size=chunk_size,
        randomness=randomness,
    )
    return _detach(per_sample_grads)


def _prepare(
    model: nn.Module, data: Tensor, targets: Tensor, wrt: Iterable[str] | None
) -> dict[str, Tensor]:
    """Check the input and choose the parameters."""
    checks.check_batch(data=data, targets=targets)
    checks.check_model(model)
    return modules.select_parameters(model, wrt)


def _empty(selected: dict[str, Tensor], batch_size: int) -> dict[str, Tensor]:
    """Return the gradients of an empty batch, which no transform would compute."""
    return {
        name: tensor.new_zeros((batch_size, *tensor.shape)) for name, tensor in selected.items()
    }


def _detach(per_sample_grads: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cut the graph that a loss with parameters of its own would leave."""
    return {name: tensor.detach() for name, tensor in per_sample_grads.items()}
