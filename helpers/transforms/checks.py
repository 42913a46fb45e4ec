"""What per-sample gradients and Jacobians refuse, each with one sentence."""

import functools
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap
from torch.nn.utils import parametrize

from helpers.numbers import check_count

_SPREAD = ("torch.distributed.", "torch.nn.parallel.distributed")
"""Where the classes of distributed modules and tensors are defined."""
BATCH_NORM = nn.BatchNorm1d.__base__  # of all layers that normalize over the batch


class Parts:
    """The modules, parameters and buffers of a model, by name.

    Each walk over a large model takes about a millisecond, and a call needs the names in many
    places. So they are read once, before anything runs.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: dict[str, nn.Module] = dict(model.named_modules())
        self.parameters: dict[str, Tensor] = dict(model.named_parameters())
        self.buffers: dict[str, Tensor] = dict(model.named_buffers())


def check_model(model: nn.Module) -> Parts:
    """Check that a model is a module in one process, without BatchNorm in training mode.

    Returns its parts, read on the way.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    parts = Parts(model)
    _check_spread(parts)
    # Under `vmap`, what is cached in the first forward pass would be that of all samples.
    cached = getattr(parametrize, "_cache_enabled", 0)
    for name, module in parts.modules.items():
        if cached and parametrize.is_parametrized(module):
            raise ValueError(
                f"{name or 'the model'} is parametrized, and parametrize.cached() around this call "
                "would give all samples the weights of one: enter it in forward"
            )
        # Without running statistics it takes those of the batch, even in evaluation mode.
        if isinstance(module, BATCH_NORM) and (module.training or module.running_mean is None):
            raise ValueError(
                f"{name or 'the model'} is BatchNorm in training mode: it mixes the samples of a "
                "batch, so the gradient of one sample alone is not defined; call model.eval() on "
                "a model with running statistics, or use GroupNorm"
            )
    return parts


def check_one_process(model: nn.Module) -> None:
    """Check that a model lies in one process, and that its backward pass reduces over no others."""
    _check_spread(Parts(model))


def _check_spread(parts: Parts) -> None:
    for members in (parts.modules, parts.parameters, parts.buffers):
        for name, member in members.items():
            kind = _spread_class(type(member))
            if kind is not None:
                raise ValueError(
                    f"{name or 'the model'} is a {kind}, spread over processes: take the "
                    ".module of DistributedDataParallel, or copy the full_tensor() of sharded "
                    "weights into a plain module"
                )


@functools.lru_cache  # a call asks this of each module and tensor, and they have few classes
def _spread_class(kind: type) -> str | None:
    """Return the name of the class of distributed modules or tensors that a class extends."""
    for base in kind.__mro__:
        if base.__module__.startswith(_SPREAD):
            return base.__name__
    return None


def check_callable(model: nn.Module) -> None:
    """Check that `functional_call` can swap the weights of a model."""
    if isinstance(model, torch.jit.ScriptModule | nn.DataParallel):
        raise ValueError(
            f"functional_call cannot give a {type(model).__name__} other weights: use the module "
            "it was made from"
        )


def check_batch(name: str, batch: Tensor) -> None:
    """Check that a tensor is a batch, holds numbers, and lies in this process."""
    if not isinstance(batch, Tensor):
        raise TypeError(f"{name} must be a tensor (B, ...), got {type(batch).__name__}")
    if batch.dim() == 0:
        raise ValueError(f"{name} must have a batch dimension, (B, ...), got shape ()")
    if batch.is_meta:
        raise ValueError(f"{name} is on the meta device, where tensors have no data")
    if debug_unwrap(batch) is not batch:
        raise ValueError(f"{name} belongs to a transform around this call: call it outside of that")
    if type(batch).__module__.startswith(_SPREAD):
        raise ValueError(
            f"{name} is a {type(batch).__name__}, spread over processes: pass its full_tensor(), "
            "or this process's part, to_local()"
        )


def check_scalar(
    value: Tensor,
    source: str = "loss_fn",
    batch_label: str = "a batch of one",
    remedy: str = "reduction='sum' or 'mean'",
) -> Tensor:
    """Return the value of a function for one sample, if it is a scalar tensor."""
    if not isinstance(value, Tensor) or value.dim() != 0:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"{source} must return a scalar, a tensor of shape (), for {batch_label}, "
            f"got {got}: {remedy} gives one"
        )
    if not (value.is_floating_point() or value.is_complex()):
        raise ValueError(f"{source} must return a floating point number, got {value.dtype}")
    return value


def check_options(chunk_size: int | None = None, randomness: str = "error") -> None:
    """Check the arguments `chunk_size` and `randomness`."""
    if chunk_size is not None:
        check_count("chunk_size", chunk_size)
    if randomness not in ("error", "different", "same"):
        raise ValueError(f"randomness must be 'error', 'different' or 'same', got {randomness!r}")


def select_parameters(
    model: nn.Module,
    wrt: Iterable[str] | None = None,
    *,
    argument: str = "wrt",
    parts: Parts | None = None,
) -> dict[str, Tensor]:
    """Return the parameters to differentiate, detached: those in `wrt`, or all trainable ones.

    `argument` is the caller's name for `wrt`; `parts` are those of the model, if they are known.
    """
    parameters = (parts or Parts(model)).parameters
    for name, parameter in parameters.items():
        if nn.parameter.is_lazy(parameter):
            raise ValueError(
                f"{name} belongs to a lazy layer that was never initialized, so it has no shape: "
                "run the model once on a batch first"
            )
    # A string is iterable, too: it would be taken for names of one letter.
    if isinstance(wrt, str):
        raise TypeError(f"{argument} must be several names, for example [{wrt!r}], got one string")
    if not isinstance(wrt, Iterable | None):
        raise TypeError(f"{argument} must be names of parameters, got {type(wrt).__name__}")
    names = list(parameters if wrt is None else wrt)  # `wrt` may be an iterator
    unknown = set(names).difference(parameters)
    if unknown:
        raise ValueError(
            f"{argument} names {', '.join(sorted(map(repr, unknown)))}, not found in this model, "
            f"which has {', '.join(parameters)}"
        )
    chosen = {}
    for name in names:
        parameter = parameters[name]
        # Frozen parameters are left out, unless they are asked for by name.
        if wrt is None and not parameter.requires_grad:
            continue
        if not (parameter.is_floating_point() or parameter.is_complex()):
            raise ValueError(
                f"{argument} names {name}, which has no gradient: it is {parameter.dtype}"
            )
        # Its gradient would have to pass on to what it was computed from.
        if not parameter.is_leaf:
            raise ValueError(f"{name} was computed from other tensors: differentiate those instead")
        hooks = parameter._post_accumulate_grad_hooks  # noqa: SLF001 - no public name lists them
        if hooks:
            raise ValueError(
                f"{name} has {len(hooks)} hooks on its .grad, which no per-sample gradient passes "
                "through: remove them (register_hook acts on the gradient itself)"
            )
        if parameter.is_meta:
            raise ValueError(f"{name} is on the meta device, where tensors have no data")
        # Detached, so that transforms do not see the model's own graph.
        chosen[name] = parameter.detach()
    return chosen
