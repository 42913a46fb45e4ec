"""Recording layers: per-sample gradients from one forward and backward pass of a batch.

The samples run under `torch.vmap`, so that none sees another, and plain autograd, outside `vmap`,
runs the backward pass. Each parameter enters as a leaf `(B, *shape)` that takes no memory, so
autograd finds the samples' gradients for any use of it. Calls that match `LAYER_RULES` get the
parameter itself, without a graph; their activations and output gradients are recorded. The
gradient of a parameter is the sum over its calls and its leaf.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import debug_unwrap, vmap

from helpers.layers import convolution, embedding, linear
from helpers.layers.layer_call import Bias, LayerCall, Matcher, dense
from helpers.layers.per_sample import PerSampleGradients
from helpers.transforms import known_wrong
from helpers.transforms import randomness as streams
from helpers.transforms.batches import Leaf
from helpers.transforms.functional import standing_in
from helpers.transforms.known_wrong import Refusal, Watched
from helpers.transforms.loop import by_backward
from helpers.transforms.problem import LOOPED, RECORDED, VMAPPED, Gradients
from helpers.transforms.restore import version

LAYER_RULES: dict[Callable, Matcher] = {**linear.RULES, **convolution.RULES, **embedding.RULES}
"""The layer rules, by the torch function that a layer calls."""

# Spectral norm multiplies its weight by vectors that it keeps in buffers, and writes the products
# there. All samples share them, and `vmap` does not write what has its dimension into a buffer.
_POWER_ITERATION = (torch.mv, Tensor.mv)

Tensors = dict[str, Tensor]
Named = list[tuple[str, LayerCall]]  # with the name of the parameter


class RecordedGradients(Gradients):
    """Gradients of a scalar function as recorded calls of layers, or dense where that fails."""

    ways = (RECORDED, VMAPPED, LOOPED)

    def recorded(self, leaves: tuple[Tensor, ...]) -> PerSampleGradients:
        """Run the function forward and backward; raise a refusal if that cannot be recorded."""
        with self.under_vmap():
            record = _Record(self, len(leaves[0]))
            losses = vmap(record.forward, randomness=self.randomness)(record.leaves, *leaves)
            self.note(losses)
            calls = record.backward(losses)
        unmet = [name for name in self.params if name not in calls]
        if unmet:
            # What the forward pass under `vmap` stored in the model, a plain one must not meet.
            self._put_back()
            generators = self.snapshot.generators
            undo = streams.streams_kept(self.devices(), generators)
            # In "error", only other threads draw, and what they drew must stay.
            with nullcontext() if self.randomness == "error" else undo:
                _check_unmet(self, unmet, leaves)
        return PerSampleGradients(calls)

    def vmapped(self, leaves: tuple[Tensor, ...]) -> PerSampleGradients:
        """Differentiate all samples at once, as in lesson 3."""
        return _dense(super().vmapped(leaves))

    def looped(self, leaves: tuple[Leaf, ...]) -> PerSampleGradients:
        """Differentiate one sample after the other, in plain autograd."""
        return _dense(super().looped(leaves))

    def chunks(self, chunk_size: int | None = None) -> Iterator[tuple[slice, PerSampleGradients]]:
        """Yield each chunk as a slice of the batch, and its gradients.

        The model is as it was whenever somebody else's code runs.
        """
        if self.is_empty:
            return
        for rows in self.slices(chunk_size):
            with self.prepared():
                grads = self.compute(rows)
            yield rows, grads
            del grads  # or it would lie beside that of the next chunk


def _dense(grads: Tensors) -> PerSampleGradients:
    calls = {}
    for name, tensor in grads.items():
        calls[name] = [dense(tensor)]
    return PerSampleGradients(calls)


def _check_unmet(problem: Gradients, unmet: list[str], leaves: tuple[Leaf, ...]) -> None:
    """Run the first sample; raise a refusal if an unrecorded parameter has a gradient."""
    # A function that reads `requires_grad` may hide them from the record.
    own = [problem.parts.parameters[name] for name in unmet]
    for gradient in problem.alone(leaves, 0, lambda value: by_backward(value, own)):
        if gradient is not None:
            problem.depends = True
            if gradient.any():
                raise Refusal("the recorder missed a use of a parameter")


class _Record(Watched):
    """One forward pass of all samples, which records calls of layers, and the backward pass."""

    def __init__(self, problem: Gradients, size: int) -> None:
        parameters = problem.parts.parameters
        super().__init__(known_wrong.VMAP, known_wrong.OUTSIDE, parameters=parameters.values())
        self._problem = problem
        self._params = problem.params
        self._own = parameters | problem.parts.buffers
        # A leaf for each parameter: all samples share its memory.
        self.leaves: Tensors = {}
        self._versions = []
        self._names: dict[int, str] = {}  # of the parameters that rules describe
        for name, tensor in problem.params.items():
            self.leaves[name] = tensor.expand(size, *tensor.shape).requires_grad_()
            self._versions.append(version(tensor))
            # A complex gradient is the conjugate of what the rules compute: its leaf gets it.
            if not tensor.is_complex():
                self._names[id(parameters[name])] = name
        # A number that requires a gradient, so that each layer has a backward pass.
        self._probe = next(iter(problem.params.values())).new_zeros(()).requires_grad_()
        self._calls: Named = []
        self._in_backward = False

    def forward(self, leaves: Tensors, *sample: Tensor) -> Tensor:
        """Run the function on one sample, under `vmap`."""
        substitutes = dict(leaves)
        for name, buffer in self._problem.buffers.items():
            substitutes[name] = buffer.clone()
        own_sample = [leaf.clone() for leaf in sample]
        with self, standing_in(self._own, substitutes):
            return self._problem.function(self._problem.model, *own_sample).clone()

    def backward(self, losses: Tensor) -> dict[str, list[LayerCall]]:
        """Return the calls of each parameter; the last holds the gradient of its leaf."""
        # Torch forbids most writes into a batch that shares its memory, but not all.
        if self._versions != [version(tensor) for tensor in self._params.values()]:
            raise Refusal("the model writes into its weights")
        if not losses.requires_grad:
            return {}
        self._in_backward = True
        count = len(self.leaves)
        inputs = list(self.leaves.values())
        inputs += [self._own[name] for name in self.leaves]  # which should get no gradient
        inputs.append(self._probe)
        # The sum, since each leaf holds the gradients of all samples, and no sample sees another.
        grads = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)
        for gradient in grads[count : 2 * count]:
            if gradient is not None:
                raise Refusal("a parameter is used directly, past the recorder")
        calls: dict[str, list[LayerCall]] = {}
        for name, call in self._calls:
            if call.output_grads is not None:
                calls.setdefault(name, []).append(call)
        for name, gradient in zip(self.leaves, grads[:count], strict=True):
            if gradient is not None:
                # Detached, since a custom function may return a tensor that it saved.
                calls.setdefault(name, []).append(dense(gradient.detach()))
        return calls

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, and record it if it is a layer's."""
        kwargs = kwargs or {}
        if func in known_wrong.OF_AUTOGRAD:  # only the unwrapped tensor knows these
            return func(debug_unwrap(args[0]))
        if func in _POWER_ITERATION and not torch.is_grad_enabled():
            args = [_once(value) for value in args]
        if func is F.scaled_dot_product_attention:
            outputs = _attention_of_all(*args, **kwargs)
            if outputs is not None:
                return outputs
        rule = LAYER_RULES.get(func)
        match = None if rule is None else rule(self._is_weight, *args, **kwargs)
        if match is None or self._is_weight(match.activations):
            return super().__torch_function__(func, types, args, kwargs)

        calls: Named = []
        if self._is_weight(match.weight):
            call = match.rule(match.weight.shape, match.options)
            calls.append((self._names[id(match.weight)], call))
        if self._is_weight(match.bias):
            call = Bias(match.bias.shape, {"formula": match.bias_formula})
            calls.append((self._names[id(match.bias)], call))
        if not calls:
            return super().__torch_function__(func, types, args, kwargs)
        self._calls += calls

        # The layer runs with the parameters themselves, which have no graph.
        constants = [self._constant(value) for value in args]
        named = {name: self._constant(value) for name, value in kwargs.items()}
        outputs = super().__torch_function__(func, types, constants, named)
        arrive = functools.partial(self._arrive, calls)
        return _passed_on(outputs, match.activations, self._probe, arrive)

    def _constant(self, value: Any) -> Any:
        """Return the parameter, which has no graph, in place of a leaf."""
        return self._params[self._names[id(value)]] if self._is_weight(value) else value

    def _is_weight(self, value: Any) -> bool:
        return id(value) in self._names

    def _arrive(self, calls: Named, activations: Tensor, grads: Tensor) -> None:
        """Add the output gradient to a layer's calls, once in the backward pass."""
        if not self._in_backward or torch.is_grad_enabled() or calls[0][1].output_grads is not None:
            raise Refusal("the model differentiates something itself")
        for name, call in calls:
            dtype = self._params[name].dtype  # autocast may have changed it
            call.output_grads = grads.to(dtype)
            if not isinstance(call, Bias):
                floating = activations.is_floating_point()
                call.activations = activations.to(dtype) if floating else activations


def _once(value: Any) -> Any:
    """Return a tensor without the dimension of `vmap`, if all samples share it."""
    if not isinstance(value, Tensor):
        return value
    inner, dim = _unwrapped(value)
    if dim is None:
        return value
    # Shared samples lie in the same memory; and a single sample shares with itself.
    is_shared = inner.stride(dim) == 0 or inner.shape[dim] == 1
    return inner.select(dim, 0) if is_shared else value


def _attention_of_all(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor | None:
    """Compute attention for all samples in one call, outside of `vmap`; `None` if that may differ.

    `vmap` has no rule for fused attention on a CPU: it takes one sample after the other, and its
    backward pass fills a tensor of all samples with zeros for each of them.
    """
    sides = (query, key, value)
    if attn_mask is not None or dropout_p or any(side.dim() != 4 for side in sides):
        return None
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return None  # one of them is broadcast within a sample
    around = _vmap_around()
    if around is None:
        return None
    size = around.batch_size()
    with around.lower():
        # (B, 1, heads, T, channels) to (B, heads, T, channels), since a sample is a batch of one
        whole = [_of_all(side, size).flatten(0, 1) for side in sides]
        outputs = F.scaled_dot_product_attention(*whole, is_causal=is_causal, **options)
        return _wrapped(outputs.unflatten(0, (size, len(query))))


def _passed_on(outputs: Tensor, activations: Tensor, probe: Tensor, arrive: Callable) -> Tensor:
    """Call `_Recorded` outside of `vmap`, with the tensors of all samples, `(B, ...)`."""
    # The public way, a function with a rule for `vmap`, is slower than many layers.
    around = _vmap_around()
    if around is None:
        raise Refusal("the model calls a layer within a transform of its own")
    size = around.batch_size()
    with around.lower():
        whole = [_of_all(tensor, size) for tensor in (outputs, activations)]
        passed = _Recorded.apply(*whole, probe, arrive)
        return _wrapped(passed)


def _of_all(tensor: Tensor, size: int) -> Tensor:
    """Return a tensor of all samples, `(B, ...)`."""
    inner, dim = _unwrapped(tensor)
    if dim is None:  # all samples share it
        return inner.expand(size, *inner.shape)
    return inner.movedim(dim, 0)


def _vmap_around() -> Any:
    """Return the `vmap` around a call, or `None` if it is within a transform of the model."""
    try:
        from torch._C._functorch import TransformType  # noqa: PLC2701
        from torch._functorch.pyfunctorch import (  # noqa: PLC2701
            retrieve_current_functorch_interpreter,
        )
    except ImportError as error:  # private, so they may go away
        raise Refusal("this torch lacks vmap internals") from error
    around = retrieve_current_functorch_interpreter()
    is_ours = around.level() == 1 and around.key() == TransformType.Vmap
    return around if is_ours else None


def _unwrapped(tensor: Tensor) -> tuple[Tensor, int | None]:
    """Return what `vmap` wraps, and the dimension of its samples; `None` if it wraps nothing."""
    return _internals()._unwrap_batched(tensor, 1)  # noqa: SLF001


def _wrapped(tensor: Tensor) -> Tensor:
    """Return a tensor of all samples, `(B, ...)`, as `vmap` has it for one."""
    return _internals()._add_batch_dim(tensor, 0, 1)  # noqa: SLF001


def _internals() -> Any:
    try:
        from torch._C import _functorch  # noqa: PLC2701
    except ImportError as error:
        raise Refusal("this torch lacks vmap internals") from error
    return _functorch


class _Recorded(torch.autograd.Function):
    """Pass outputs on; in the backward pass, record activations and the incoming gradient."""

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
