"""Forwards that are watched: which weights a batch of samples used, and how.

The samples run under `torch.vmap`, so that none sees another, and plain autograd outside of it
leads the gradients back. Each parameter enters as a leaf `(B, *shape)`, one copy for each sample
that takes no memory, so whatever a forward does with a weight, autograd finds the gradients of the
samples. Calls that `helpers.layers.kinds` knows get the parameter itself, without a graph, and
their inputs and the gradients at their outputs are noted instead. So what a watch reports is
complete, whatever the model does: the gradient of a parameter is the sum over its uses and what
has arrived at its leaf.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import TransformType, _add_batch_dim, _unwrap_batched
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from helpers.layers.found import Found
from helpers.layers.kinds import CALLS
from helpers.layers.use import Use
from helpers.transforms import fallback, recurrent, samples
from helpers.transforms.modules import StandIn
from helpers.transforms.randomness import (
    RANDOMNESS,
    Drawn,
    random_state,
    restore_random_state,
)
from helpers.transforms.reach import Reach


class NotSeen(Exception):
    """The forward did something that a watch cannot follow."""


class Watch:
    """A function of each sample of a batch, to run and differentiate by its parameters.

    Args:
        function: See `helpers.transforms.samples`; returns a scalar.
        model: Any module.
        params: Detached tensors by parameter name.
        randomness: `"error"`, `"different"` or `"same"`, as in `torch.vmap`.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        model: nn.Module,
        params: dict[str, Tensor],
        *,
        randomness: str = "error",
    ) -> None:
        self._stand_in = StandIn(model)
        self.params = {name: self._stand_in.params[name].detach() for name in params}
        self.randomness = randomness
        self._function = recurrent.unrolling(function, self._stand_in.model)

    def chunks(
        self, batch: tuple[Tensor, ...], chunk_size: int
    ) -> Iterator[tuple[slice, Found | None]]:
        """Run the function forward and backward, for one chunk of samples after the other.

        Args:
            batch: Tensors `(B, ...)`, at least one.
            chunk_size: How many samples to take at a time.

        Yields:
            Where the chunk lies in the batch, and what was found. `None` stands for a model that
            cannot be watched; it may work all the same, and the random streams are then where
            they were before the chunk.
        """
        device = batch[0].device
        first, seen = random_state(device), True
        for start in range(0, len(batch[0]), chunk_size):
            if start and self.randomness == "same":
                restore_random_state(first, device)
            state = random_state(device) if start else first
            part = slice(start, start + chunk_size)
            found = None
            if seen:
                try:
                    found = self(tuple(tensor[part] for tensor in batch))
                except NotSeen:
                    seen = False
                    restore_random_state(state, device)
            yield part, found
            del found  # or it would lie beside that of the next chunk
            if start + chunk_size < len(batch[0]):
                self._stand_in.undo_writes(hidden=True)

    def __call__(self, batch: tuple[Tensor, ...]) -> Found:
        """Run the function forward and backward.

        Args:
            batch: Tensors `(B, ...)`, at least one; B at least 1.

        Raises:
            NotSeen: The model does something that cannot be watched; it may work all the same.
            ValueError: It draws random numbers, and `randomness` is `"error"`.
        """
        try:
            with samples.eager():
                seen, rest = self._run(batch)
        except Drawn as error:
            raise ValueError(RANDOMNESS) from error
        except NotSeen:
            raise
        except Exception as error:  # whatever a model can raise; the loop says if it is at fault
            if isinstance(error, torch.AcceleratorError) or fallback.is_no_memory(error):
                raise  # a slower way that takes more memory is no answer to it
            place = fallback.find_place(error, self._stand_in.models)
            if place == fallback.ELSEWHERE and not isinstance(error, RuntimeError):
                raise
            raise NotSeen("torch cannot run the model for a batch of weights") from error
        uses: dict[str, list[tuple[Use, str]]] = {}
        for use in seen:
            for role, name in use.names.items():
                uses.setdefault(name, []).append((use, role))
                self._convert(use, self.params[name].dtype)
        return Found(uses, rest)

    @staticmethod
    def _convert(use: Use, dtype: torch.dtype) -> None:
        """Give a use the dtype of its parameter, where autocast gave it another."""
        use.grads = use.grads.to(dtype)
        if use.inputs.is_floating_point():
            use.inputs = use.inputs.to(dtype)

    def _run(self, batch: tuple[Tensor, ...]) -> tuple[list[Use], dict[str, Tensor]]:
        """Return the uses that a gradient has reached, and the gradients at the leaves."""
        size = len(batch[0])
        leaves = {
            name: tensor.expand(size, *tensor.shape).requires_grad_()
            for name, tensor in self.params.items()
        }
        versions = [tensor._version for tensor in self.params.values()]
        anchor = torch.zeros((), device=batch[0].device, requires_grad=True)
        tape = _Tape()

        def per_sample(_: Any, buffers: dict[str, Tensor], *sample: Any) -> Tensor:
            tape.uses.clear()  # of an attempt that failed
            *tensors, leaves = sample
            with _Notice(self._stand_in, leaves, buffers, tape, self.params, anchor, tensors[0]):
                return self._function(self._stand_in.model, leaves, buffers, *tensors)

        with torch.enable_grad():
            losses = samples.map_samples(
                samples.isolated(per_sample, self._stand_in),
                {},
                self._stand_in.buffers,
                (*batch, leaves),
                randomness=self.randomness,
            )
            # Torch forbids most writes into a batch that shares its memory, but not all.
            if versions != [tensor._version for tensor in self.params.values()]:
                raise NotSeen("the model writes into its weights")
            reached: tuple[Tensor | None, ...] = ()
            if losses.requires_grad:
                tape.running = True
                sources = [*leaves.values(), anchor]
                reached = torch.autograd.grad(losses.sum(), sources, allow_unused=True)
        grads = {
            name: gradient
            for name, gradient in zip(leaves, reached, strict=False)
            if gradient is not None
        }
        return [use for use in tape.uses if use.grads is not None], grads


class _Tape:
    """The uses of one forward, and whether its backward has begun."""

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.running = False


class _Notice(Reach):
    """Note calls of functions with weights."""

    def __init__(
        self,
        stand_in: StandIn,
        leaves: dict[str, Tensor],
        buffers: dict[str, Tensor],
        tape: _Tape,
        params: dict[str, Tensor],
        anchor: Tensor,
        ticket: Tensor,
    ) -> None:
        super().__init__(stand_in.names, leaves | buffers)
        self.tape, self.params, self.anchor, self.ticket = tape, params, anchor, ticket
        # A complex gradient is the conjugate of what the kinds compute: it comes by the leaf.
        self.names = {id(leaf): name for name, leaf in leaves.items() if not leaf.is_complex()}

    def _call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        adapter = CALLS.get(func)
        call = adapter(self._known, *args, **kwargs) if adapter else None
        if call is None:
            return func(*args, **kwargs)
        names = {
            role: self.names[id(tensor)]
            for role, tensor in call.weights.items()
            if id(tensor) in self.names
        }
        if not names:
            return func(*args, **kwargs)
        use = call.kind(names, call.weights["weight"].shape, call.options)
        self.tape.uses.append(use)
        weights = {
            role: self.params[names[role]] if role in names else tensor
            for role, tensor in call.weights.items()
        }
        output = call.run(**weights)
        output = _note(output, call.inputs, self.ticket, self.anchor, use, self.tape)
        return call.finish(output) if call.finish else output

    def _known(self, value: Any) -> bool:
        return id(value) in self.names


def _note(outputs: Tensor, inputs: Tensor, ticket: Tensor, *args: Any) -> Tensor:
    """Call `_Note`, or do what comes of it where nothing but the watch's own `vmap` is around.

    To call a function by way of `vmap` takes longer than many a layer.
    """
    around = retrieve_current_functorch_interpreter()
    if around.level() > 1 or around.key() != TransformType.Vmap:
        return _Note.apply(outputs, inputs, ticket, *args)
    unwrapped, dims = zip(*(_unwrap_batched(each, 1) for each in (outputs, inputs)), strict=True)
    with around.lower():
        kept = _keep(around.batch_size(), dims, *unwrapped, *args)
    return _add_batch_dim(kept, 0, 1)


def _keep(
    size: int, dims: tuple[int | None, ...], outputs: Tensor, inputs: Tensor, *args: Any
) -> Tensor:
    """Call `_Keep` with the tensors of all samples, the dimension of the batch in front."""
    outputs, inputs = (
        tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip((outputs, inputs), dims, strict=False)
    )
    return _Keep.apply(outputs, inputs, *args)


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
        return _keep(info.batch_size, in_dims, outputs, inputs, *args), 0


class _Keep(torch.autograd.Function):
    """Pass outputs on; when the backward comes, keep the inputs and the gradient that arrives."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, inputs: Tensor, anchor: Tensor, use: Use, tape: _Tape
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
