"""What is differentiated for each sample of a batch, and the ways to do so, best first."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap, grad, vmap

from helpers.transforms import batches, checks, fallback
from helpers.transforms import randomness as streams
from helpers.transforms.batches import Batch, Leaf, Tree
from helpers.transforms.checks import Parts
from helpers.transforms.functional import VmapSupport, functional
from helpers.transforms.known_wrong import Refusal, Watched
from helpers.transforms.loop import by_backward, is_by_hand
from helpers.transforms.reach import modules_of, parameters_of, reached
from helpers.transforms.restore import preserved
from helpers.transforms.sequences import Sequences

Tensors = dict[str, Tensor]
LossFn = Callable[[Any, Any], Tensor]

RECORDED, VMAPPED, LOOPED = "recorded", "vmapped", "looped"
"""Ways to a result: layer by layer, all samples at once under `vmap`, one after the other."""


class Problem:
    """A function of a model and one sample, to be differentiated for each sample of a batch.

    It is a ladder of ways to the result, best first. `compute` takes the first way that has not
    failed: what cannot be done, or not be guaranteed, raises, and then the next way takes over,
    also for the chunks that follow. Chunks that were finished before are kept. A subclass says
    what the ways compute, in methods that have their names.

    Args:
        function: `function(model, *leaves_of_one_sample)` returns a tensor.
        model: Any module. Its parts are read once, and what a forward pass changes is put back.
        params: The parameters to differentiate, detached, by name.
        batch: The samples.
        randomness: What to do about random numbers; see `func_gradients`.
        parts: The model's parts, if they are known.
    """

    ways = (VMAPPED, LOOPED)
    dtype: torch.dtype | None = None  # of the results; `None` means that of the ways

    def __init__(
        self,
        function: Callable[..., Tensor],
        model: nn.Module,
        params: Tensors,
        batch: Batch,
        *,
        randomness: str = "error",
        parts: Parts | None = None,
    ) -> None:
        self.function = function
        self.model = model
        self.params = params
        self.batch = batch
        self.randomness = randomness
        self.parts = parts or Parts(model)
        self.buffers = {name: buffer.detach() for name, buffer in self.parts.buffers.items()}
        self.depends = False  # whether the value of some sample depended on the parameters
        self._ways_left = list(self.ways)
        self._first_state: streams.State = []  # of random generators, if all samples share draws
        self._support: VmapSupport | None = None
        self._outside: streams.OutsideTorch | None = None
        # A mode disables some of torch's fast paths, so the loop uses it only once needed.
        self._watches_loop = False

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def is_empty(self) -> bool:
        """Whether there is no sample, or nothing to differentiate."""
        return not len(self.batch) or not self.params

    # The ways, each for some samples, given by their leaves `(b, ...)`.

    def recorded(self, leaves: tuple[Tensor, ...]) -> Any:
        """Compute the result layer by layer."""
        raise NotImplementedError

    def vmapped(self, leaves: tuple[Tensor, ...]) -> Any:
        """Compute the result for all samples at once, under `vmap`."""
        raise NotImplementedError

    def looped(self, leaves: tuple[Leaf, ...]) -> Any:
        """Compute the result for one sample after the other, in plain autograd."""
        raise NotImplementedError

    def nothing(self) -> Any:
        """Return the result where there is no sample, or nothing to differentiate."""
        raise NotImplementedError

    # The ladder.

    def slices(self, chunk_size: int | None = None) -> list[slice]:
        """Check the options, and return the chunks of the batch as slices."""
        checks.check_options(chunk_size, self.randomness)
        step = chunk_size or max(1, len(self))
        return [slice(start, start + step) for start in range(0, len(self), step)]

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Let a block compute chunks: only `params` require a gradient, and all is put back."""
        self._trainable = []
        for name, parameter in self.parts.parameters.items():
            if parameter.requires_grad:
                self._trainable.append(name)
        self._outside = None
        # The state is taken before anything is changed: what is restored after each chunk must
        # not hold the hooks that recurrent layers get under `vmap`.
        others = modules_of(self.function, self.model)  # such as a loss with state
        state = preserved(self.model, self.params, others, parts=self.parts)
        with state as self.snapshot, torch.enable_grad():
            if self.randomness == "same" and not self._first_state:
                self._first_state = self._random_state()
            yield

    def compute(self, rows: slice) -> Any:
        """Compute the result for some samples, in the best way that has not failed."""
        leaves = tuple(leaf[rows] for leaf in self.batch.leaves)
        if rows.start and self.randomness == "same":  # what the first chunk drew, all draw
            streams.restore_random_state(self._first_state)
        failed = None
        while True:
            way = self._ways_left[0]
            self.snapshot.is_current = False
            try:
                if way == RECORDED:
                    result = self.recorded(leaves)
                elif way == VMAPPED:
                    result = self.vmapped(leaves)
                else:
                    result = self.looped(leaves)
                break
            except Exception as error:
                if way == LOOPED or not fallback.leads_to_next_way(error):
                    raise
                failed = error
            finally:
                self._put_back()
            # Outside of `except`, so that what the next way raises does not carry this error.
            warning = fallback.explain(way == RECORDED, failed, self.model)
            del self._ways_left[0]
            # What another thread drew during this way must not count against the next.
            self._outside = None
        if failed is not None:
            fallback.warn(warning, failed)
        return result

    def collect(self, chunk_size: int | None = None) -> Any:
        """Compute a tensor `(B, ...)`, or a dictionary of them, chunk by chunk.

        They are detached, and each has memory of its own.
        """
        slices = self.slices(chunk_size)
        if self.is_empty:
            return self.nothing()
        collected: Tensors = {}
        with self.prepared():
            for rows in slices:
                result = self.compute(rows)
                is_tensor = isinstance(result, Tensor)
                self._write({"": result} if is_tensor else result, collected, rows)
                del result  # free it before the next chunk
        return collected[""] if is_tensor else collected

    def _write(self, chunk: Tensors, collected: Tensors, rows: slice) -> None:
        """Write a chunk's results into full-size tensors, which the first chunk allocates."""
        # To concatenate chunks in the end would take the memory of all results a second time.
        owners = set()
        if len(self) == 1:
            # The gradient of a lone sample may be a parameter itself, as that of a @ b is.
            for parameter in self.parts.parameters.values():
                if parameter.layout is torch.strided:
                    owners.add(parameter.untyped_storage().data_ptr())
        for name, result in chunk.items():
            if debug_unwrap(result, recurse=False) is not result:
                raise ValueError(
                    "this call is within a transform, such as torch.func.grad, which cannot "
                    "differentiate its result: call it outside of that"
                )
            if name not in collected:
                address = result.untyped_storage().data_ptr()
                # Views of one tensor, as of the gradient of a sum, are copied.
                is_own = address not in owners and 0 not in result.stride()
                owners.add(address)
                if len(result) == len(self) and is_own and self.dtype in (None, result.dtype):
                    collected[name] = result.detach()
                    continue
                shape = (len(self), *result.shape[1:])
                collected[name] = result.new_empty(shape, dtype=self.dtype)
            collected[name][rows] = result.detach()

    def warn_if_constant(self) -> None:
        """Warn if no value depended on the parameters."""
        if not self.is_empty and not self.depends:
            fallback.warn(
                "the loss depends on none of the selected parameters, so all gradients are 0: "
                "is there a no_grad, detach() or item()?",
                category=UserWarning,
            )

    # What the ways use.

    @contextmanager
    def under_vmap(self) -> Iterator[None]:
        """Let a block run the model under `vmap`, or refuse.

        Draws of NumPy and Python, which `vmap` does not see, are refused unless all samples share
        them. If the block raises, streams are restored, unless nothing may draw from them: then
        another thread may have moved them.
        """
        if self._support is None:
            code = list(reached([self.model, self.function]))
            device = self.batch.leaves[0].device
            self._support = VmapSupport(self.parts, code, device)
        if any(isinstance(leaf, Sequences) for leaf in self.batch.leaves):
            raise Refusal("samples are of unequal length")
        for name in self.params:  # for each chunk, since a forward pass may register them
            if self.parts.parameters[name]._backward_hooks:  # noqa: SLF001 - no public name
                raise Refusal(f"the parameter {name} has hooks on its gradient")
        if self._outside is None:
            self._outside = streams.OutsideTorch(self.snapshot.generators)
        before: streams.State = []
        if self.randomness != "error":
            before = self._first_state or self._random_state()
        try:
            with self._support.given():
                yield
            if self.randomness != "same" and self._outside.have_moved():
                raise Refusal("NumPy or Python draws random numbers, or another thread does")
        except Exception:
            streams.restore_random_state(before)
            raise

    def alone(self, leaves: tuple[Leaf, ...], index: int, backward: Callable[[Tensor], Any]) -> Any:
        """Return `backward(value)` for one sample, in plain autograd, and put the model back.

        Raises ValueError if the first sample draws random numbers that nothing allows: if the
        generators never end where they began.
        """
        if self.randomness != "error" or index > 0:
            return self._run(leaves, index, backward)
        seen = [self._random_state()]  # where the generators began, and ended in each attempt
        for _ in range(4):  # another thread may draw, but not every time
            result = self._run(leaves, index, backward)
            end = self._random_state()
            # A model with a seed of its own ends in one state, wherever it begins.
            if any(streams.alike(end, state) for state in seen):
                return result
            seen.append(end)
        raise ValueError(streams.RANDOMNESS)

    def _run(self, leaves: tuple[Leaf, ...], index: int, backward: Callable[[Tensor], Any]) -> Any:
        """Return `backward(value)` for one sample, whatever it draws, and put the model back."""
        if self.randomness == "same":
            streams.restore_random_state(self._first_state)
        # Clones, since autograd does not save tensors that were made in inference mode.
        sample = [leaf[index].detach().clone() for leaf in leaves]
        self.snapshot.is_current = False
        try:
            with Watched() if self._watches_loop else nullcontext():
                value = self.function(self.model, *sample)
                if self._watches_loop or not is_by_hand(value):
                    return backward(value)
        except Exception as error:
            self._refuse_two_devices(error)
            fallback.add_place(error, self.model)
            raise
        finally:
            self._put_back()
        # The graph has a node that must be watched: the sample runs again, and so do all others.
        self._watches_loop = True
        return self._run(leaves, index, backward)

    def _refuse_two_devices(self, error: Exception) -> None:
        """Raise ValueError in place of torch's error if samples are not where the model is."""
        if "same device" not in str(error) or not self.parts.parameters:
            return
        name, parameter = next(iter(self.parts.parameters.items()))
        for path, leaf in zip(self.batch.paths, self.batch.leaves, strict=True):
            if leaf.device != parameter.device:
                raise ValueError(
                    f"{path} is on {leaf.device} and the parameter {name} on {parameter.device}: "
                    "move both to one device"
                ) from error

    def note(self, value: Any) -> None:
        """Note whether a value depends on the parameters, where all run at once."""
        # This is called after `Watched` has ended, under which torch may not say it.
        if isinstance(value, Tensor) and value.requires_grad:
            self.depends = True

    def require_gradients(self, names: Iterable[str]) -> None:
        """Let exactly these parameters require a gradient, until the block ends."""
        for name, parameter in self.parts.parameters.items():
            if parameter.is_leaf:
                parameter.requires_grad = name in names

    def devices(self) -> set[torch.device]:
        """Return the devices on which a forward pass may draw: those of samples and model."""
        tensors = (*self.batch.leaves, *self.parts.parameters.values(), *self.buffers.values())
        return {tensor.device for tensor in tensors}

    def _random_state(self) -> streams.State:
        return streams.random_state(self.devices(), self.snapshot.generators)

    def _put_back(self) -> None:
        """Restore the model, if something ran since it was restored."""
        if not self.snapshot.is_current:
            self.snapshot.restore()
            self.snapshot.is_current = True


class Gradients(Problem):
    """Gradients of a scalar function: `{name: (B, *shape)}`.

    They are zeros for a parameter that the function does not use.
    """

    @classmethod
    def of_loss(
        cls,
        model: nn.Module,
        loss_fn: LossFn,
        data: Tree,
        targets: Tree = None,
        wrt: Iterable[str] | None = None,
        randomness: str = "error",
    ) -> Self:
        """Check the arguments of a loss, select the parameters, and flatten the batch."""
        parts = checks.check_model(model)
        batch = batches.take(model, data=data, targets=targets)
        params = checks.select_parameters(model, wrt, parts=parts)
        if wrt is None:
            _warn_of_parameters_in_the_loss(loss_fn, model, parts)
        function = partial(sample_loss, loss_fn, batch)
        return cls(function, model, params, batch, randomness=randomness, parts=parts)

    def vmapped(self, leaves: tuple[Tensor, ...]) -> Tensors:
        """Differentiate all samples at once, as in lesson 3."""
        compute_grads = grad(functional(self))
        # Samples share parameters and buffers.
        in_dims = (None, None) + (0,) * len(leaves)
        compute_sample_grads = vmap(compute_grads, in_dims=in_dims, randomness=self.randomness)
        with self.under_vmap():
            return compute_sample_grads(self.params, self.buffers, *leaves)

    def looped(self, leaves: tuple[Leaf, ...]) -> Tensors:
        """Differentiate one sample after the other, in plain autograd."""
        grads: Tensors = {}
        for name, parameter in self.params.items():
            shape = (len(leaves[0]), *parameter.shape)
            grads[name] = parameter.new_zeros(shape, dtype=self.dtype, requires_grad=False)
        unselected = set(self._trainable) - self.params.keys()
        for index in range(len(leaves[0])):
            sample_grads = self.alone(leaves, index, self.backward)
            # A checkpoint may need gradients of parameters that were not selected. Without them
            # some parameter is not reached; from then on, all trainable ones require a gradient.
            if unselected and any(gradient is None for gradient in sample_grads):
                self.require_gradients(unselected | self.params.keys())
                unselected = set()
                sample_grads = self.alone(leaves, index, self.backward)
            for per_sample_grad, gradient in zip(grads.values(), sample_grads, strict=True):
                if gradient is not None:
                    # The value itself may require a gradient for unselected parameters alone.
                    self.depends = True
                    per_sample_grad[index] = gradient
        return grads

    def nothing(self) -> Tensors:
        """Return gradients of no sample, or of no parameter."""
        grads = {}
        for name, parameter in self.params.items():
            grads[name] = parameter.new_zeros((0, *parameter.shape), dtype=self.dtype)
        return grads

    def backward(self, value: Tensor) -> list[Tensor | None]:
        """Differentiate the value of one sample, in plain autograd."""
        return by_backward(value, [self.parts.parameters[name] for name in self.params])


def _warn_of_parameters_in_the_loss(loss_fn: LossFn, model: nn.Module, parts: Parts) -> None:
    """Warn of trainable parameters that the loss has and the model has not."""
    of_model = set(map(id, parts.parameters.values()))
    names = []
    for name, parameter in parameters_of(loss_fn, model):
        if parameter.requires_grad and id(parameter) not in of_model:
            names.append(name)
    if names:
        fallback.warn(
            f"the loss has trainable parameters of its own, which the result leaves out: "
            f"{', '.join(names)}; put the model and the loss into one module whose forward "
            "returns the loss, or freeze them with requires_grad_(False)",
            category=UserWarning,
        )


def sample_loss(loss_fn: LossFn, batch: Batch, model: nn.Module, *sample: Tensor) -> Tensor:
    """Compute the loss of one sample, given its leaves."""
    if isinstance(loss_fn, type) and issubclass(loss_fn, nn.Module):
        raise TypeError(f"loss_fn is the class {loss_fn.__name__}: pass {loss_fn.__name__}()")
    data, targets = batch.of_one(sample)
    return checks.check_scalar(loss_fn(batches.call(model, data), targets))
