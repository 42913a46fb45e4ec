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
from torch import Tensor, nn
from torch.func import debug_unwrap, grad, vmap

from helpers.layers import convolution, embedding, linear
from helpers.layers.layer_call import Bias, LayerCall, Matcher, dense
from helpers.layers.per_sample import PerSampleGradients
from helpers.transforms import fallback, known_wrong, loop, samples
from helpers.transforms import randomness as streams
from helpers.transforms.known_wrong import Refusal, Watched
from helpers.transforms.restore import Snapshot

LAYER_RULES: dict[Callable, Matcher] = {**linear.RULES, **convolution.RULES, **embedding.RULES}
"""The layer rules, by the torch function that a layer calls."""

Function = Callable[..., Tensor]
Tensors, Batch = dict[str, Tensor], tuple[Tensor, ...]
Named = list[tuple[str, LayerCall]]  # with the name of the parameter


def per_sample_gradients(
    function: Function,
    model: nn.Module,
    params: Tensors,
    batch: Batch,
    chunk_size: int | None = None,
    *,
    randomness: str = "error",
) -> Iterator[tuple[slice, PerSampleGradients]]:
    """Differentiate a scalar function of each sample, chunk by chunk.

    Yields the chunk's slice of the batch, and its gradients as recorded calls. If a model cannot be
    recorded, they come dense from `vmap` over `grad`, with a warning. Needs at least one parameter
    and one sample.
    """
    step, failed, slow = chunk_size or len(batch[0]), None, False
    if randomness == "same":
        state = Snapshot([model], model.parameters())
        first = streams.random_state(batch[0].device, state.generators)
    for start in range(0, len(batch[0]), step):
        if start and randomness == "same":
            streams.restore_random_state(first)
        rows = slice(start, start + step)
        chunk = tuple(tensor[rows] for tensor in batch)
        if failed is None:
            try:
                grads = _recorded(function, model, params, chunk, randomness)
            except Exception as error:
                if not fallback.leads_to_loop(error):
                    raise
                failed = error
            if failed is not None:
                module, reason = fallback.describe(failed, model)
        if failed is not None:
            grads, slow = _dense(function, model, params, chunk, randomness, slow)
            if not slow:  # the loop has its own warning, and one is enough
                fallback.warn(
                    f"{module} cannot be recorded layer by layer, so its gradients were formed, "
                    f"which takes more memory ({reason})",
                    failed,
                )
        yield rows, grads
        del grads  # or it would lie beside that of the next chunk


def _dense(
    function: Function, model: nn.Module, params: Tensors, batch: Batch, randomness: str, slow: bool
) -> tuple[PerSampleGradients, bool]:
    """Form gradients by `vmap` over `grad`, or in the loop; return also whether the loop ran."""

    def by_loop() -> Tensors:
        nonlocal slow
        slow = True
        return loop.gradients(function, model, params, batch, randomness=randomness)

    compute_grads, in_dims = grad(samples.functional(function, model, params)), (0,) * len(batch)
    compute = vmap(compute_grads, in_dims=(None, None, *in_dims), randomness=randomness)
    options = {"otherwise": by_loop, "randomness": randomness}
    grads = by_loop() if slow else samples.batched(compute, model, params, batch, **options)
    return PerSampleGradients({n: [dense(tensor)] for n, tensor in grads.items()}), slow


def _recorded(
    function: Function, model: nn.Module, params: Tensors, batch: Batch, randomness: str
) -> PerSampleGradients:
    """Run the function forward and backward; raise a refusal if that cannot be recorded."""
    draws = {"device": batch[0].device, "randomness": randomness}
    with samples.running(model, params, function, **draws) as (snapshot, params, _):
        record = _Record(function, model, params, len(batch[0]))
        losses = vmap(record.forward, randomness=randomness)(record.leaves, *batch)
        calls = record.backward(losses)
    if unmet := {name: tensor for name, tensor in params.items() if name not in calls}:
        undo = streams.streams_kept(batch[0].device, snapshot.generators)
        undo = nullcontext() if randomness == "error" else undo  # then only other threads draw
        with undo:
            _check_unmet(function, model, unmet, batch)
    return PerSampleGradients(calls)


def _check_unmet(function: Function, model: nn.Module, unmet: Tensors, batch: Batch) -> None:
    """Run the first sample; raise a refusal if an unrecorded parameter has a gradient."""
    # A function that reads `requires_grad` may hide them from the record.
    first = [tensor[:1] for tensor in batch]
    grads = loop.gradients(function, model, unmet, first, randomness="different")
    if any(tensor.any() for tensor in grads.values()):
        raise Refusal("the recorder missed a use of a parameter")


class _Record(Watched):
    """One forward pass of all samples, which records calls of layers, and the backward pass."""

    def __init__(self, function: Function, model: nn.Module, params: Tensors, size: int) -> None:
        parameters = dict(model.named_parameters())
        super().__init__(known_wrong.VMAP, known_wrong.OUTSIDE, parameters=parameters.values())
        self.leaves = {
            name: tensor.expand(size, *tensor.shape).requires_grad_()
            for name, tensor in params.items()
        }
        self._function, self._model, self._params = function, model, params
        self._versions = [tensor._version for tensor in params.values()]
        self._buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}
        self._own = parameters | dict(model.named_buffers())
        # A complex gradient is the conjugate of what the rules compute: its leaf gets it.
        real = (name for name, tensor in params.items() if not tensor.is_complex())
        self._names = {id(parameters[name]): name for name in real}
        # A number that requires a gradient, so that each layer has a backward pass.
        self._probe = next(iter(params.values())).new_zeros(()).requires_grad_()
        self._calls: Named = []
        self._in_backward = False

    def forward(self, leaves: Tensors, *sample: Tensor) -> Tensor:
        """Run the function on one sample, under `vmap`."""
        others = leaves | {name: buffer.clone() for name, buffer in self._buffers.items()}
        sample = [*map(torch.clone, sample)]
        with self, samples.standing_in(self._own, others):
            return self._function(self._model, *sample).clone()

    def backward(self, losses: Tensor) -> dict[str, list[LayerCall]]:
        """Return the calls of each parameter; the last holds the gradient of its leaf."""
        # Torch forbids most writes into a batch that shares its memory, but not all.
        if self._versions != [tensor._version for tensor in self._params.values()]:
            raise Refusal("the model writes into its weights")
        if not losses.requires_grad:
            return {}
        self._in_backward = True
        parameters = [self._own[name] for name in self.leaves]
        inputs = [*self.leaves.values(), *parameters, self._probe]
        grads = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)
        if any(tensor is not None for tensor in grads[len(parameters) : -1]):
            raise Refusal("a parameter is used directly, past the recorder")
        calls: dict[str, list[LayerCall]] = {}
        for name, call in self._calls:
            if call.output_grads is not None:
                calls.setdefault(name, []).append(call)
        for name, tensor in zip(self.leaves, grads, strict=False):
            if tensor is not None:
                calls.setdefault(name, []).append(dense(tensor))
        return calls

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, and record it if it is a layer's."""
        kwargs = kwargs or {}
        if func in known_wrong.OF_AUTOGRAD:  # only the unwrapped tensor knows these
            return func(debug_unwrap(args[0]))
        rule = LAYER_RULES.get(func)
        match = rule(self._is_weight, *args, **kwargs) if rule else None
        calls: Named = []
        if match and not self._is_weight(match.activations):
            of_bias = match.bias, Bias, {"formula": match.bias_formula}
            for weight, kind, options in ((match.weight, match.rule, match.options), of_bias):
                if self._is_weight(weight):
                    calls.append((self._names[id(weight)], kind(weight.shape, options)))
        if not calls:
            return super().__torch_function__(func, types, args, kwargs)
        self._calls += calls
        kwargs = {name: self._constant(value) for name, value in kwargs.items()}
        outputs = super().__torch_function__(func, types, [*map(self._constant, args)], kwargs)
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


def _passed_on(outputs: Tensor, activations: Tensor, probe: Tensor, arrive: Callable) -> Tensor:
    """Call `_Recorded` outside of `vmap`, with the tensors of all samples, `(B, ...)`."""
    # The public way, a function with a rule for `vmap`, is slower than many layers.
    try:
        from torch._C._functorch import TransformType, _add_batch_dim, _unwrap_batched
        from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
    except ImportError as error:  # private, so they may go away
        raise Refusal("this torch lacks vmap internals") from error
    around = retrieve_current_functorch_interpreter()
    if around.level() > 1 or around.key() != TransformType.Vmap:
        raise Refusal("the model calls a layer within a transform of its own")
    with around.lower():
        tensors = (
            tensor.expand(around.batch_size(), *tensor.shape)
            if dim is None
            else tensor.movedim(dim, 0)
            for tensor, dim in (_unwrap_batched(tensor, 1) for tensor in (outputs, activations))
        )
        return _add_batch_dim(_Recorded.apply(*tensors, probe, arrive), 0, 1)


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
