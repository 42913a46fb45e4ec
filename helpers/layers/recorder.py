"""Per-sample gradients by what layers meet in one forward and backward pass of a batch.

The samples run under `torch.vmap`, so that none sees another, and plain autograd outside of it
leads the gradients back. Each parameter enters as a leaf `(B, *shape)`, one copy for each sample
that takes no memory, so whatever a forward pass does with a weight, autograd finds the gradients of
the samples. Calls that `LAYER_RULES` knows get the parameter itself, without a graph, and their
activations and the gradients at their outputs are recorded instead. So what is recorded is
complete, whatever the model does: the gradient of a parameter is the sum over its calls and what
has arrived at its leaf.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap, grad, vmap

from helpers.layers import convolution, embedding, linear
from helpers.layers.layer_call import Bias, LayerCall, MatchedCall, Matcher, dense
from helpers.layers.per_sample import PerSampleGradients
from helpers.transforms import fallback, loop, samples
from helpers.transforms import randomness as streams
from helpers.transforms.known_wrong import (
    OF_AUTOGRAD,
    OUTSIDE,
    VMAP,
    Refusal,
    Watched,
    reaches_script,
)
from helpers.transforms.restore import preserved
from helpers.transforms.sequences import Sequences

LAYER_RULES: dict[Callable, Matcher] = {**linear.RULES, **convolution.RULES, **embedding.RULES}
"""What is known of layers, by the function of torch that they call."""

Function = Callable[..., Tensor]
Chunk = tuple[slice, tuple[Tensor, ...]]  # where it lies in the batch, and its tensors
Named = list[tuple[str, LayerCall]]  # with the name of the parameter


class NotRecorded(Refusal):
    """The forward pass did something that a record cannot follow."""


def per_sample_gradients(
    function: Function,
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    chunk_size: int | None = None,
    *,
    randomness: str = "error",
) -> Iterator[tuple[slice, PerSampleGradients]]:
    """Differentiate a scalar function of each sample, for one chunk of samples after the other.

    What layers meet gives the gradients in factors. A model that cannot be recorded goes the way of
    `vmap` over `grad`, with a warning, and its gradients are dense.

    The arguments are those of `helpers.transforms.samples.batched`; there is a parameter and a
    sample at least. Yields where the chunk lies in the batch, and its gradients.
    """
    failed, device = None, batch[0].device
    chunks = _chunks(batch, chunk_size or len(batch[0]), randomness)
    for part, chunk in chunks:
        before = streams.random_state(device)
        try:
            found = _recorded(function, model, params, chunk, randomness)
            after = streams.random_state(device)
            if randomness != "same" and not streams.alike_outside_torch(before, after):
                raise NotRecorded("NumPy or Python draws random numbers, once for all samples")
        except Exception as error:
            if not fallback.leads_to_loop(error):
                raise
            failed = error
            break
        yield part, found
        del found  # or it would lie beside that of the next chunk
    if failed is not None:
        streams.restore_random_state(before, device)
        rest = itertools.chain([(part, chunk)], chunks)
        yield from _dense(function, model, params, rest, randomness, failed)


def _chunks(batch: tuple[Tensor, ...], step: int, randomness: str) -> Iterator[Chunk]:
    """Divide a batch; where random numbers are the same for all, each chunk begins with them."""
    device = batch[0].device
    first = streams.random_state(device) if randomness == "same" else None
    for start in range(0, len(batch[0]), step):
        if start and first is not None:
            streams.restore_random_state(first, device)
        part = slice(start, start + step)
        yield part, tuple(tensor[part] for tensor in batch)


def _dense(
    function: Function,
    model: nn.Module,
    params: dict[str, Tensor],
    chunks: Iterable[Chunk],
    randomness: str,
    failed: Exception,
) -> Iterator[tuple[slice, PerSampleGradients]]:
    """Take chunks by `vmap` over `grad`; once that fails, the others by the loop at once."""
    place, said = fallback.told(failed, model)
    compute_grads, looped = grad(samples.functional(function, model, params)), False

    def by_loop(chunk: tuple[Tensor, ...]) -> dict[str, Tensor]:
        nonlocal looped
        looped = True
        return loop.gradients(function, model, params, chunk, randomness=randomness)

    for part, chunk in chunks:
        if looped:
            found = by_loop(chunk)
        else:
            in_dims = (None, None, *(0 for _ in chunk))
            compute = vmap(compute_grads, in_dims=in_dims, randomness=randomness)
            options = {"otherwise": functools.partial(by_loop, chunk), "randomness": randomness}
            found = samples.batched(compute, model, params, chunk, **options)
        if not (looped or part.start):  # the loop has its own warning, and one is enough
            fallback.warn(
                f"{place} cannot be recorded layer by layer, so its gradients were formed, which "
                f"takes more memory ({said})",
                failed,
            )
        yield part, PerSampleGradients({name: [dense(each)] for name, each in found.items()})
        del found


def _recorded(
    function: Function,
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    randomness: str,
) -> PerSampleGradients:
    """Run the function forward and backward; raise a refusal where that cannot be followed."""
    if reaches_script((function, model)) or any(isinstance(each, Sequences) for each in batch):
        raise NotRecorded("what is scripted, or of unequal length, is not recorded")
    with samples.running(model, params) as (_, params, buffers):
        record = _Record(function, model, params, len(batch[0]))
        in_dims = (0, None, *(0 for _ in batch))
        forward = vmap(record.forward, in_dims=in_dims, randomness=randomness)
        others = record.backward(forward(record.leaves, buffers, *batch))
    calls: dict[str, list[LayerCall]] = {}
    for name, call in [*record.calls, *others]:
        if call.output_grads is not None:
            calls.setdefault(name, []).append(call)
    if unmet := [name for name in params if name not in calls]:
        _check_unmet(function, model, unmet, batch)
    return PerSampleGradients(calls)


def _check_unmet(
    function: Function, model: nn.Module, names: Collection[str], batch: tuple[Tensor, ...]
) -> None:
    """Raise NotRecorded if parameters that the record has not met have a gradient after all.

    A function that reads `requires_grad` may hide them. The first sample is run.
    """
    with streams.streams_kept(batch[0].device), preserved(model, names):
        own = dict(model.named_parameters())
        value = function(model, *(tensor[0].detach().clone() for tensor in batch))
        grads = loop.by_backward(value, [own[name] for name in names])
    if any(each.any() for each in grads):
        raise NotRecorded("a parameter is used out of reach of the record")


class _Record(Watched):
    """One forward pass of all samples, which records calls of layers, and the backward pass."""

    def __init__(
        self, function: Function, model: nn.Module, params: dict[str, Tensor], size: int
    ) -> None:
        super().__init__(VMAP, OUTSIDE, parameters=model.parameters())
        self.calls: Named = []
        self.leaves = {
            name: tensor.expand(size, *tensor.shape).requires_grad_()
            for name, tensor in params.items()
        }
        self._function, self._model, self._params = function, model, params
        self._versions = [tensor._version for tensor in params.values()]
        self._own = dict(model.named_parameters()) | dict(model.named_buffers())
        # A complex gradient is the conjugate of what the rules compute: it comes by the leaf.
        real = (name for name, tensor in params.items() if not tensor.is_complex())
        self._names = {id(self._own[name]): name for name in real}
        # A number that requires a gradient, so that each layer has a backward pass.
        self._probe = next(iter(params.values())).new_zeros(()).requires_grad_()
        self._in_backward = False

    def forward(
        self, leaves: dict[str, Tensor], buffers: dict[str, Tensor], *sample: Tensor
    ) -> Tensor:
        """Run the function of one sample, under `vmap`."""
        others = leaves | {name: buffer.clone() for name, buffer in buffers.items()}
        with self, samples.standing_in(self._own, others):
            return self._function(self._model, *map(torch.clone, sample)).clone()

    def backward(self, losses: Tensor) -> Named:
        """Complete the calls, and return the gradients that have arrived at leaves."""
        # Torch forbids most writes into a batch that shares its memory, but not all.
        if self._versions != [tensor._version for tensor in self._params.values()]:
            raise NotRecorded("the model writes into its weights")
        if not losses.requires_grad:
            return []
        self._in_backward = True
        own = [self._own[name] for name in self.leaves]
        inputs = [*self.leaves.values(), *own, self._probe]
        grads = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)
        if any(each is not None for each in grads[len(own) : -1]):
            raise NotRecorded("a parameter is used as it is, out of reach of the record")
        found = zip(self.leaves, grads, strict=False)
        return [(name, dense(each)) for name, each in found if each is not None]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, and record it if it is a layer's."""
        kwargs = kwargs or {}
        if func in OF_AUTOGRAD:  # which lies outside of `vmap`, where no tensor tells
            return func(debug_unwrap(args[0]))
        rule = LAYER_RULES.get(func)
        match = rule(self._is_weight, *args, **kwargs) if rule else None
        calls = self._calls_of(match) if match else []
        if not calls:
            return super().__torch_function__(func, types, args, kwargs)
        self.calls += calls
        kwargs = {name: self._constant(value) for name, value in kwargs.items()}
        outputs = func(*self._constant(args), **kwargs)
        arrive = functools.partial(self._arrive, calls)
        return _passed_on(outputs, match.activations, self._probe, arrive)

    def _calls_of(self, match: MatchedCall) -> Named:
        """Return what is to be recorded of a layer: its weight, its bias, both or none."""
        weight, bias = (self._names.get(id(each)) for each in (match.weight, match.bias))
        calls: Named = []
        if weight is not None:
            calls.append((weight, match.rule(match.weight.shape, match.options)))
        if bias is not None:
            calls.append((bias, Bias(match.bias.shape, {"formula": match.bias_formula})))
        return [] if self._is_weight(match.activations) else calls

    def _constant(self, value: Any) -> Any:
        """Replace leaves among arguments by the parameters, which have no graph."""
        if isinstance(value, list | tuple):
            return [*map(self._constant, value)]
        return self._params[self._names[id(value)]] if self._is_weight(value) else value

    def _is_weight(self, value: Any) -> bool:
        return id(value) in self._names

    def _arrive(self, calls: Named, activations: Tensor, grads: Tensor) -> None:
        """Complete the calls of a layer, to which the backward pass comes once."""
        if not self._in_backward or torch.is_grad_enabled() or calls[0][1].output_grads is not None:
            raise NotRecorded("the model differentiates something itself")
        for name, call in calls:
            dtype = self._params[name].dtype  # autocast may have given the layer another one
            call.output_grads = grads.to(dtype)
            if not isinstance(call, Bias):
                floating = activations.is_floating_point()
                call.activations = activations.to(dtype) if floating else activations


def _passed_on(outputs: Tensor, activations: Tensor, probe: Tensor, arrive: Callable) -> Tensor:
    """Call `_Recorded` outside of `vmap`, with the tensors of all samples, `(B, ...)`.

    The public way, a function with a rule for `vmap`, takes longer than many a layer.
    """
    try:
        from torch._C._functorch import TransformType, _add_batch_dim, _unwrap_batched
        from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
    except ImportError as error:  # they are private, and may go
        raise NotRecorded("this torch does not lend its vmap") from error
    around = retrieve_current_functorch_interpreter()
    if around.level() > 1 or around.key() != TransformType.Vmap:
        raise NotRecorded("the model calls a layer within a transform of its own")
    with around.lower():
        whole = (
            each.expand(around.batch_size(), *each.shape) if dim is None else each.movedim(dim, 0)
            for each, dim in (_unwrap_batched(each, 1) for each in (outputs, activations))
        )
        return _add_batch_dim(_Recorded.apply(*whole, probe, arrive), 0, 1)


class _Recorded(torch.autograd.Function):
    """Pass outputs on; in the backward, record the activations and the gradient that arrives."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, activations: Tensor, probe: Tensor, arrive: Callable
    ) -> Tensor:
        ctx.save_for_backward(activations)  # which notices if they are changed in place
        ctx.arrive = arrive
        return outputs.detach()

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        (activations,) = ctx.saved_tensors
        ctx.arrive(activations.detach(), grads)
        return grads, None, None, None
