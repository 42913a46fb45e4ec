"""Gradient computers: per-sample gradients of a task's model output behind one interface.

The interface is that of TRAK (Park et al. 2023, arXiv:2303.14186), so the package `traker` can use
a computer of this module as one of its own. The functional computer is fast, on `torch.func`; the
iterative one takes any differentiable model. Lesson 5 writes both without their checks.

Both return the same dictionary for the same model, with the names, zeros, and refusals of
`helpers.gradients`, and restore the model.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from helpers import devices
from helpers.layers.per_sample import PerSampleGradients
from helpers.layers.recorder import RecordedGradients
from helpers.model_outputs import AbstractModelOutput
from helpers.transforms import checks
from helpers.transforms.batches import Batch, Leaf, Tree
from helpers.transforms.functional import functional
from helpers.transforms.known_wrong import JACREV, OUTSIDE
from helpers.transforms.problem import Gradients, Problem

BatchLike = Sequence[Tree] | MutableMapping[str, Tree]
Tensors = dict[str, Tensor]


class AbstractGradientComputer(ABC):
    """Base class for computing a task's per-sample gradients, with two abstract methods.

    Args:
        model: Any module whose tensors are on one device; it is read at each computation.
        task: The model output that is differentiated.
        grad_dim: P, how many numbers one gradient has: the entries of the chosen parameters.
        dtype: Floating point dtype of the results. The model computes in its own.
        device: Device of the results. Model and batches stay where they are.
        grad_wrt: Names of the parameters to differentiate, in the order of the results; `None`
            means all with `requires_grad`, in the order of `model.named_parameters()`.
        chunk_size: How many samples are differentiated at a time; `None` means all of a batch.
            The iterative computer always takes one at a time.

    Raises:
        TypeError: `dtype` is not a dtype, `model` is not a module, `task` lacks a method, or
            `grad_wrt` is a string.
        ValueError: `dtype` is not floating point, `device` is absent, `grad_wrt` has an unknown
            name, a parameter is complex, `grad_dim` is not P, or `chunk_size` is below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        task: AbstractModelOutput,
        grad_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        grad_wrt: Iterable[str] | None = None,
        *,
        chunk_size: int | None = None,
    ) -> None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype must be a torch.dtype, got {type(dtype).__name__}")
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be floating point, such as torch.float32, got {dtype}")
        checks.check_options(chunk_size)
        for method in ("get_output", "get_out_to_loss_grad"):  # of another package, perhaps
            if not callable(getattr(task, method, None)):
                raise TypeError(f"task must have the method {method}, got {type(task).__name__}")
        self.task = task
        self.grad_dim = grad_dim
        self.dtype = dtype
        self.device = devices.resolve(device)
        # An iterator could be read only once; a single string is refused below.
        if grad_wrt is not None and not isinstance(grad_wrt, str):
            grad_wrt = list(grad_wrt)
        self.grad_wrt = grad_wrt
        self.chunk_size = chunk_size
        self.load_model_params(model)

    def load_model_params(self, model: nn.Module) -> None:
        """Use this model's parameters and buffers from now on.

        Nothing is copied, so later optimizer steps take effect. Raises as the constructor does.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        checks.check_one_process(model)
        params = self._params(model)
        for name, parameter in params.items():
            if parameter.is_complex():
                raise ValueError(
                    f"{name} is complex, {parameter.dtype}, and results are real, so that its "
                    "imaginary parts would be lost: name real parameters in grad_wrt"
                )
        entries = sum(parameter.numel() for parameter in params.values())
        if self.grad_dim != entries:
            raise ValueError(
                f"grad_dim is {self.grad_dim}, but the parameters to differentiate have {entries} "
                f"entries: {', '.join(params) or 'there is none'}; without grad_wrt they are "
                "those with requires_grad"
            )
        self.model = model

    @torch.inference_mode(False)
    def compute_per_sample_grad(self, batch: BatchLike) -> Tensors:
        """Differentiate the model output of each sample.

        Args:
            batch: A tuple or list of tensors `(B, ...)`, or of pytrees of such tensors, in the
                order in which the task's `get_output` takes them; or one mapping, for one argument.

        Returns:
            `{name: (B, *parameter.shape)}`, detached, in `dtype` and on `device`; zeros for a
            parameter that the output does not depend on.

        Raises:
            TypeError: `batch` is not a tuple, list or mapping of tensors or pytrees.
            ValueError: `batch` does not fit the task, the output is not a scalar, the model has
                BatchNorm in training mode, or its forward pass draws random numbers.
        """
        checked = self._checked(batch)
        problem = Gradients(self._output(checked), self.model, self._params(self.model), checked)
        problem.dtype = self.dtype
        grads: Tensors = self._collected(problem)
        for name, tensor in grads.items():
            grads[name] = tensor.to(self.device)
        return grads

    @torch.inference_mode(False)
    def compute_loss_grad(self, batch: BatchLike) -> Tensor:
        """Compute minus the derivative of each sample's loss with respect to its model output.

        Takes and refuses batches as `compute_per_sample_grad` does.

        Returns:
            `(B, 1)`, detached, in `dtype` and on `device`: the diagonal of TRAK's Q.
        """
        checked = self._checked(batch)
        params = {}
        for name, parameter in self.model.named_parameters():
            if parameter.is_floating_point():
                params[name] = parameter.detach()
        problem = _LossGrads(self._loss_grad(checked, batch), self.model, params, checked)
        problem.dtype = self.dtype
        loss_grads: Tensor = self._collected(problem)
        return loss_grads.to(self.device)

    @abstractmethod
    def _collected(self, problem: Problem) -> Any:
        """Compute a result for all samples of a batch."""

    def _params(self, model: nn.Module) -> Tensors:
        return checks.select_parameters(model, self.grad_wrt, argument="grad_wrt")

    def _checked(self, batch: BatchLike) -> Batch:
        """Flatten a batch, if the task accepts it and no BatchNorm is in training mode."""
        # Not earlier: `traker` makes a computer before it calls `model.eval()`.
        checks.check_model(self.model)
        checks.check_callable(self.model)
        signature = inspect.signature(self.task.get_output)
        parameters = list(signature.parameters.values())[3:]  # after model, weights and buffers
        return Batch(**_fitting(batch, parameters))

    # What is called for each sample.
    def _output(self, batch: Batch) -> Callable[..., Tensor]:
        def compute(model: nn.Module, *sample: Tensor) -> Tensor:
            weights, buffers = _tensors(model)
            output = self.task.get_output(model, weights, buffers, *batch.trees(sample))
            return checks.check_scalar(output, "get_output", "one sample", ".squeeze(0) or .sum()")

        return compute

    def _loss_grad(self, batch: Batch, raw_batch: BatchLike) -> Callable[..., Tensor]:
        def compute(model: nn.Module, *sample: Tensor) -> Tensor:
            sample_batch = tuple(batch.of_one(sample))
            if isinstance(raw_batch, MutableMapping):
                sample_batch = sample_batch[0]  # one mapping, not a tuple with one
            weights, buffers = _tensors(model)
            loss_grad = self.task.get_out_to_loss_grad(model, weights, buffers, sample_batch)
            is_tensor = isinstance(loss_grad, Tensor)
            if not is_tensor or loss_grad.shape != (1, 1):
                got = tuple(loss_grad.shape) if is_tensor else type(loss_grad).__name__
                raise ValueError(f"get_out_to_loss_grad must return (B, 1), got {got} for B = 1")
            return loss_grad.detach().squeeze(0)

        return compute


class FunctionalGradientComputer(AbstractGradientComputer):
    """Differentiate all samples at once, with `vmap` over `grad`.

    Takes the arguments of `AbstractGradientComputer`.
    """

    def watch(self, batch: BatchLike) -> tuple[Tensors, Iterator[tuple[slice, PerSampleGradients]]]:
        """Record each layer's activations and output gradients instead of forming gradients.

        Projections and norms need no more. In inference mode, gradients are dense, with a warning.

        Returns:
            The differentiated parameters by name, and an iterator over (slice, gradients) of the
            chunks of the batch.
        """
        checked = self._checked(batch)
        params = self._params(self.model)
        problem = RecordedGradients(self._output(checked), self.model, params, checked)
        return params, problem.chunks(self.chunk_size)

    def _collected(self, problem: Problem) -> Any:
        return problem.collect(self.chunk_size)


class IterativeGradientComputer(AbstractGradientComputer):
    """Differentiate one sample at a time in plain autograd, for models that `vmap` cannot batch.

    Takes the arguments of `AbstractGradientComputer`.
    """

    def _collected(self, problem: Problem) -> Any:
        # One forward pass for the batch and B backward passes through it would cost B * B.
        if problem.is_empty:
            return problem.nothing()
        with problem.prepared():
            return problem.looped(problem.batch.leaves)


class _LossGrads(Problem):
    """Minus the derivatives of the losses with respect to the model outputs, `(B, 1)`."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no sample; no parameter is needed."""
        return not len(self)

    def vmapped(self, leaves: tuple[Tensor, ...]) -> Tensor:
        """Compute those of all samples at once."""
        function = functional(self, JACREV, OUTSIDE)

        def under_vjp(params: Tensors, buffers: Tensors, *sample: Tensor) -> Tensor:
            """Compute the function under a `vjp`: only so can `vmap` batch recurrent layers."""
            return vjp(lambda params_now: function(params_now, buffers, *sample), params)[0]

        # Samples share parameters and buffers.
        compute = vmap(under_vjp, in_dims=(None, None) + (0,) * len(leaves))
        with self.under_vmap():
            return compute(self.params, self.buffers, *leaves)

    def looped(self, leaves: tuple[Leaf, ...]) -> Tensor:
        """Compute those of one sample after the other."""
        # The trainable parameters require gradients, since a forward pass may differentiate.
        self.require_gradients(checks.select_parameters(self.model, parts=self.parts))
        loss_grads = []
        for index in range(len(leaves[0])):
            loss_grads.append(self.alone(leaves, index, Tensor.detach))
        return torch.stack(loss_grads).to(self.dtype)

    def nothing(self) -> Tensor:
        """Return those of no sample."""
        return torch.zeros(0, 1, dtype=self.dtype)


def _tensors(model: nn.Module) -> tuple[Tensors, Tensors]:
    return dict(model.named_parameters()), dict(model.named_buffers())


def _fitting(batch: BatchLike, parameters: Sequence[inspect.Parameter]) -> dict[str, Tree]:
    """Bind the parts of a batch to a function's parameters."""
    names = [parameter.name for parameter in parameters]
    if isinstance(batch, MutableMapping) and len(names) == 1:
        return {names[0]: batch}
    if not isinstance(batch, list | tuple):
        expected, got = ", ".join(names), type(batch).__name__
        raise TypeError(f"batch must be a tuple or a list of tensors, ({expected}), got {got}")
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        # `*sample` takes any number of tensors, at least one.
        names = [f"tensor_{index}" for index in range(len(batch) or 1)]
    if len(batch) != len(names):
        expected = ", ".join(names)
        raise ValueError(f"batch must hold {len(names)} tensors, ({expected}), got {len(batch)}")
    return dict(zip(names, batch, strict=True))
