"""Forwards that are watched: which weights a batch of samples used, and how.

The samples run under `torch.vmap`, so that none sees another, and plain autograd outside of it
leads the gradients back. Calls that `helpers.layers.uses` knows get weights without a graph. So if
any other use of a weight contributes to the loss, autograd finds the weight, and the watch knows
that it has not seen all: what it reports is complete, whatever the model does.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from helpers.layers import uses
from helpers.transforms import modules, samples


class NotSeen(Exception):
    """The forward did something that a watch cannot follow."""


def watched(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    *,
    randomness: str = "error",
) -> tuple[list[uses.Use], list[str]]:
    """Run and differentiate a scalar function of each sample of a batch.

    Args:
        function: See `helpers.transforms.samples`; returns a scalar.
        model: Any module.
        params: Detached tensors by parameter name.
        batch: Tensors `(B, ...)`, at least one; B at least 1.
        randomness: `"error"`, `"different"` or `"same"`, as in `torch.vmap`.

    Returns:
        The uses with their inputs and output gradients, and the names of `params` that were also,
        or only, used in a way that no use describes.

    Raises:
        Exception: Whatever stops the model from being watched; it may work all the same.
    """
    anchor = torch.zeros((), device=batch[0].device, requires_grad=True)
    tape = _Tape()
    stand_in = modules.StandIn(model)
    run = stand_in.reaching(function)
    leaves = {name: stand_in.params[name].detach().requires_grad_() for name in params}

    def per_sample(
        params: dict[str, Tensor], buffers: dict[str, Tensor], *sample: Tensor
    ) -> Tensor:
        tape.uses.clear()  # of an attempt that failed
        with _Watch(tape, params, sample[0], anchor):
            return run(stand_in.model, params, buffers, *sample)

    with torch.enable_grad():
        losses = samples.map_samples(
            samples.isolated(per_sample, stand_in),
            leaves,
            stand_in.buffers,
            batch,
            randomness=randomness,
        )
        reached: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if losses.requires_grad:
            tape.running = True
            total = losses.sum()
            reached = torch.autograd.grad(total, [*leaves.values(), anchor], allow_unused=True)
    others = [name for name, grad in zip(leaves, reached, strict=False) if grad is not None]
    return tape.uses, others


class _Tape:
    """The uses of one forward, and whether its backward has begun."""

    def __init__(self) -> None:
        self.uses: list[uses.Use] = []
        self.running = False


class _Watch(TorchFunctionMode):
    """Note calls of functions with weights."""

    def __init__(
        self, tape: _Tape, params: dict[str, Tensor], ticket: Tensor, anchor: Tensor
    ) -> None:
        super().__init__()
        self.tape, self.ticket, self.anchor = tape, ticket, anchor
        self.names = {id(tensor): name for name, tensor in params.items()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        call = _CALLS[func](*args, **kwargs) if func in _CALLS else None
        if call is None:
            return func(*args, **kwargs)
        kind, inputs, tensors, options, run = call
        names = {
            role: self.names[id(tensor)]
            for role, tensor in tensors.items()
            if id(tensor) in self.names
        }
        if not names:
            return func(*args, **kwargs)
        shape = next(t for t in tensors.values() if t is not None).shape
        use = kind(names, shape, options)
        self.tape.uses.append(use)
        detached = (
            tensor.detach() if role in names else tensor for role, tensor in tensors.items()
        )
        return _Note.apply(run(*detached), inputs, self.ticket, self.anchor, use, self.tape)


class _Note(torch.autograd.Function):
    """Under `vmap`: hand the tensors of all samples to `_Keep`."""

    @staticmethod
    def forward(outputs: Tensor, *args: Any) -> Tensor:
        raise NotSeen("a weight was used outside of vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        outputs: Tensor,
        inputs: Tensor,
        ticket: Tensor,
        *args: Any,
    ) -> tuple[Tensor, int]:
        # The ticket, one for each sample, makes this run where outputs are the same for all.
        outputs, inputs = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((outputs, inputs), in_dims, strict=False)
        )
        return _Keep.apply(outputs, inputs, *args), 0


class _Keep(torch.autograd.Function):
    """Pass outputs on; when the backward comes, keep the inputs and the gradient that arrives."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, inputs: Tensor, anchor: Tensor, use: uses.Use, tape: _Tape
    ) -> Tensor:
        # The anchor requires a gradient, so that there is a backward for the first layer too.
        ctx.save_for_backward(inputs)  # which notices if they are changed in place
        ctx.use, ctx.tape = use, tape
        return outputs.detach()

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.tape.running or torch.is_grad_enabled() or ctx.use.grads is not None:
            raise NotSeen("the model differentiates something itself")
        (ctx.use.inputs,) = (tensor.detach() for tensor in ctx.saved_tensors)
        ctx.use.grads = grads
        return grads, None, None, None, None


# Each takes the arguments of a function and says: the kind of use, its input, its weights, what
# the use has to know, and how to call the function with other weights. `None`: not known.


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    def run(weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    return uses.Use, input, {"weight": weight, "bias": bias}, {}, run


def _convolution(function: Callable[..., Tensor], dims: int) -> Callable[..., Any]:
    def call(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if isinstance(padding, str):
            return None
        options = {
            name: [value] * dims if isinstance(value, int) else list(value) * (dims // len(value))
            for name, value in (("stride", stride), ("padding", padding), ("dilation", dilation))
        }

        def run(weight: Tensor, bias: Tensor | None) -> Tensor:
            return function(input, weight, bias, **options, groups=groups)

        return (
            uses.Convolution,
            input,
            {"weight": weight, "bias": bias},
            {**options, "groups": groups},
            run,
        )

    return call


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None

    def run(weight: Tensor) -> Tensor:
        return F.embedding(input, weight, padding_idx)

    return uses.Embedding, input, {"weight": weight}, {"padding": padding_idx}, run


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    def run(weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.layer_norm(input, normalized_shape, weight, bias, eps)

    def normalise(inputs: Tensor) -> Tensor:
        return F.layer_norm(inputs, normalized_shape, eps=eps)

    options = {"normalise": normalise, "axis": None}
    return uses.Normalisation, input, {"weight": weight, "bias": bias}, options, run


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    def run(weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.group_norm(input, num_groups, weight, bias, eps)

    def normalise(inputs: Tensor) -> Tensor:  # (B, N, channels, ...)
        flat = F.group_norm(inputs.flatten(0, 1), num_groups, eps=eps)
        return flat.view(inputs.shape)

    options = {"normalise": normalise, "axis": 2}
    return uses.Normalisation, input, {"weight": weight, "bias": bias}, options, run


_CALLS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.conv1d: _convolution(F.conv1d, 1),
    F.conv2d: _convolution(F.conv2d, 2),
    F.conv3d: _convolution(F.conv3d, 3),
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
}
