"""Per-sample gradients by what layers meet in one forward and backward of a batch.

The samples run under `torch.vmap`, so that none sees another, and plain autograd outside of it
leads the gradients back. Each parameter enters as a leaf `(B, *shape)`, one copy for each sample
that takes no memory, so whatever a forward does with a weight, autograd finds the gradients of the
samples. Calls that `LAYER_RULES` knows get the parameter itself, without a graph, and their
activations and the gradients at their outputs are recorded instead. So what is recorded is
complete, whatever the model does: the gradient of a parameter is the sum over its calls and what
has arrived at its leaf.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from helpers.layers import convolution, embedding, linear
from helpers.layers.layer_call import LayerCall, Matcher
from helpers.layers.per_sample import PerSampleGradients
from helpers.transforms import derivatives, fallback, samples
from helpers.transforms.call import ParameterAliases
from helpers.transforms.randomness import random_state, restore_random_state

LAYER_RULES: dict[Callable, Matcher] = {**linear.RULES, **convolution.RULES, **embedding.RULES}
"""What is known of layers, by the function of torch that they call."""


class NotRecorded(Exception):
    """The forward did something that a record cannot follow."""


def per_sample_gradients(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    chunk_size: int | None = None,
    *,
    randomness: str = "error",
) -> Iterator[tuple[slice, PerSampleGradients]]:
    """Differentiate a scalar function of each sample, for one chunk of samples after the other.

    What layers meet gives the gradients in factors. A model that cannot be recorded goes the way of
    `vmap` over `grad`, and its gradients are dense.

    The arguments are those of `helpers.transforms.samples.vmapped`; there is a parameter and a
    sample at least. Yields where the chunk lies in the batch, and its gradients.
    """
    device, step = batch[0].device, chunk_size or len(batch[0])
    first = random_state(device)
    recorded = transformed = True

    def loop() -> dict[str, Tensor]:
        nonlocal transformed  # what one chunk does not get from `vmap`, the next would not
        transformed = False
        return derivatives.by_loop(function, model, params, chunk, randomness=randomness)

    def transform() -> dict[str, Tensor]:
        options = {"transform": grad, "otherwise": loop, "randomness": randomness}
        return samples.vmapped(function, model, params, chunk, **options)

    for start in range(0, len(batch[0]), step):
        if start and randomness == "same":
            restore_random_state(first, device)
        before = random_state(device)
        part = slice(start, start + step)
        chunk = tuple(tensor[part] for tensor in batch)
        if recorded:
            try:
                found = _recorded(function, model, params, chunk, randomness)
            except Exception as error:  # whatever a model raises; the loop says if it is at fault
                if isinstance(error, torch.AcceleratorError) or fallback.is_no_memory(error):
                    raise  # a slower way that takes more memory is no answer to it
                recorded = False
                restore_random_state(before, device)
        if not recorded:
            found = PerSampleGradients(transform() if transformed else loop())
        yield part, found
        del found  # or it would lie beside that of the next chunk


def _recorded(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    randomness: str,
) -> PerSampleGradients:
    """Run the function forward and backward; raise NotRecorded where that cannot be followed."""
    size, own = len(batch[0]), dict(model.named_parameters())
    ids = {id(tensor): name for name, tensor in (*own.items(), *model.named_buffers())}
    if any(own[name]._backward_hooks for name in params):
        raise NotRecorded("a parameter has hooks, which are run on gradients")
    named = fallback.slow_operations_named()
    with samples.running(model, params) as (snapshot, params, buffers), named:
        leaves = {
            name: tensor.expand(size, *tensor.shape).requires_grad_()
            for name, tensor in params.items()
        }
        versions = [tensor._version for tensor in params.values()]
        probe = torch.zeros((), device=batch[0].device, requires_grad=True)
        record = _Record(params, probe)

        def per_sample(_: Any, buffers: dict[str, Tensor], *sample: Any) -> Tensor:
            record.calls.clear()  # of an attempt that failed
            *tensors, leaves = sample
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
            tensors = [tensor.clone() for tensor in tensors]
            with _RecordedLayers(ids, leaves, buffers, record, sample[0]):
                loss = function(model, *tensors)
            # Torch forbids most writes into a batch that shares its memory, but not all.
            if versions != [tensor._version for tensor in params.values()]:
                raise NotRecorded("the model writes into its weights")
            return loss

        whole = (*batch, leaves)
        losses = samples.map_samples(
            per_sample, {}, buffers, whole, snapshot.restore, randomness=randomness
        )
        reached: tuple[Tensor | None, ...] = ()
        if losses.requires_grad:
            record.in_backward = True
            originals = [own[name] for name in leaves]
            reached = torch.autograd.grad(
                losses.sum(), [*leaves.values(), *originals, probe], allow_unused=True
            )
            if any(each is not None for each in reached[len(leaves) : -1]):
                raise NotRecorded("a parameter is used as it is, out of reach of the record")
        dense = {
            name: gradient
            for name, gradient in zip(leaves, reached, strict=False)
            if gradient is not None
        }
        calls = [call for call in record.calls if call.output_grads is not None]
        found = {*dense, *(name for call in calls for name in call.names.values())}
        if unreached := [name for name in leaves if name not in found]:
            samples.check_unreached(function, model, unreached, batch)
    by_name: dict[str, list[tuple[LayerCall, str]]] = {}
    for call in calls:
        for role, name in call.names.items():
            by_name.setdefault(name, []).append((call, role))
            # Autocast may have given the layer another dtype.
            call.output_grads = call.output_grads.to(params[name].dtype)
            if call.activations.is_floating_point():
                call.activations = call.activations.to(params[name].dtype)
    return PerSampleGradients(dense, by_name)


@dataclass
class _Record:
    """The calls of one forward."""

    params: dict[str, Tensor]  # that layers get, without a graph
    probe: Tensor  # a number that requires a gradient, so that each layer has a backward
    calls: list[LayerCall] = field(default_factory=list)
    in_backward: bool = False


class _RecordedLayers(ParameterAliases):
    """Record calls of functions with weights."""

    def __init__(
        self,
        ids: dict[int, str],
        leaves: dict[str, Tensor],
        buffers: dict[str, Tensor],
        record: _Record,
        sample: Tensor,
    ) -> None:
        super().__init__(ids, leaves | buffers)
        self._record, self._sample = record, sample
        # A complex gradient is the conjugate of what the rules compute: it comes by the leaf.
        self._leaves = {id(leaf): name for name, leaf in leaves.items() if not leaf.is_complex()}

    def _call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        rule = LAYER_RULES.get(func)
        match = rule(self._is_weight, *args, **kwargs) if rule else None
        if match is None:
            return super()._call(func, args, kwargs)
        names = {
            role: self._leaves[id(tensor)]
            for role, tensor in match.weights.items()
            if id(tensor) in self._leaves
        }
        if not names:
            return super()._call(func, args, kwargs)
        call = match.rule(names, match.weights["weight"].shape, match.options)
        self._record.calls.append(call)
        weights = {
            role: self._record.params[names[role]] if role in names else tensor
            for role, tensor in match.weights.items()
        }
        outputs = match.run(**weights)
        outputs = _passed_on(outputs, match.activations, self._sample, call, self._record)
        return match.finish(outputs) if match.finish else outputs

    def _is_weight(self, value: Any) -> bool:
        return id(value) in self._leaves


def _passed_on(
    outputs: Tensor, activations: Tensor, sample: Tensor, call: LayerCall, record: _Record
) -> Tensor:
    """Call `_OfSamples`, or do what comes of it where nothing but the record's `vmap` is around.

    To call a function by way of `vmap` takes longer than many a layer.
    """
    try:
        from torch._C._functorch import TransformType, _add_batch_dim, _unwrap_batched
        from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
    except ImportError:  # they are private, and may go
        return _OfSamples.apply(outputs, activations, sample, call, record)
    around = retrieve_current_functorch_interpreter()
    if around.level() > 1 or around.key() != TransformType.Vmap:
        return _OfSamples.apply(outputs, activations, sample, call, record)
    outputs, out_dim = _unwrap_batched(outputs, 1)
    activations, in_dim = _unwrap_batched(activations, 1)
    with around.lower():
        outputs = _recorded_outputs(
            around.batch_size(), (out_dim, in_dim), outputs, activations, call, record
        )
    return _add_batch_dim(outputs, 0, 1)


def _recorded_outputs(
    size: int,
    dims: tuple[int | None, ...],
    outputs: Tensor,
    activations: Tensor,
    call: LayerCall,
    record: _Record,
) -> Tensor:
    """Call `_Recorded` with the tensors of all samples, the dimension B in front."""
    outputs, activations = (
        tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip((outputs, activations), dims, strict=True)
    )
    return _Recorded.apply(outputs, activations, record.probe, call, record)


class _OfSamples(torch.autograd.Function):
    """Under `vmap`: hand the tensors of all samples to `_Recorded`."""

    @staticmethod
    def forward(outputs: Tensor, *args: Any) -> Tensor:
        raise NotRecorded("a weight was used outside of vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        outputs: Tensor,
        activations: Tensor,
        sample: Tensor,
        *args: Any,
    ) -> tuple[Tensor, int]:
        # The sample makes this run where outputs and activations are the same for all.
        return _recorded_outputs(info.batch_size, in_dims[:2], outputs, activations, *args), 0


class _Recorded(torch.autograd.Function):
    """Pass outputs on; in the backward, record the activations and the gradient that arrives."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        activations: Tensor,
        probe: Tensor,
        call: LayerCall,
        record: _Record,
    ) -> Tensor:
        ctx.save_for_backward(activations)  # which notices if they are changed in place
        ctx.call, ctx.record = call, record
        return outputs.detach()

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        repeated = ctx.call.output_grads is not None
        if not ctx.record.in_backward or torch.is_grad_enabled() or repeated:
            raise NotRecorded("the model differentiates something itself")
        (ctx.call.activations,) = (tensor.detach() for tensor in ctx.saved_tensors)
        ctx.call.output_grads = grads
        return grads, None, None, None, None
