"""What an error under transforms is a sign of: by its message, then by who raised it."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from helpers.limits.diagnosis.watch import CUSTOM_OPERATOR
from helpers.transforms.checks import BATCH_NORM, INSTANCE_NORM


@dataclass(frozen=True)
class Sign:
    """An error by which an entry of lesson 6 is known."""

    fragment: str
    """A part of the message."""
    entry: str
    error: type[Exception] = RuntimeError
    at: Callable[[nn.Module], bool] | None = None
    """Which modules raise it for this cause, where several causes share one message."""
    functions: tuple[str, ...] = ()
    """Which functions of torch raise it, for the same purpose."""


def _is(*kinds: type[nn.Module], training: bool = False) -> Callable[[nn.Module], bool]:
    return lambda module: isinstance(module, kinds) and (module.training or not training)


def _has(*attributes: str) -> Callable[[nn.Module], bool]:
    return lambda module: any(getattr(module, name, None) for name in attributes)


def _uninitialized(module: nn.Module) -> bool:
    return _is(nn.modules.lazy.LazyModuleMixin)(module) and module.has_uninitialized_params()


_DECIDES = "attempting to use a Tensor in some data-dependent control flow"
_ITEM = ("item", "__float__", "__int__", "__index__")
_NORM = "running_mean or running_var, which will be updated in place, were not batched"
_BROADCAST = "doesn't match the broadcast shape"
_HALF = "expected scalar type BFloat16 but found Float"
_RENORM = "vmap: aten::embedding_renorm_(self, *extra_args) is not possible"
_SETUP_CONTEXT = "it must override the setup_context staticmethod"
_STATELESS = "The stateless API can't be used with"
SIGNS = (
    Sign(_DECIDES, "data-dependent-branch"),
    Sign("calling .item() on a Tensor", "item", functions=_ITEM),
    Sign("Cannot access data pointer of Tensor that doesn't have storage", "numpy-or-list"),
    Sign("It looks like you're calling .item() on a Tensor. We don't support", "tensor-of-tensors"),
    Sign("Attempting to batch over indexing with a boolean mask", "boolean-mask"),
    Sign("We do not support batching operators that can output dynamic shape", "dynamic-shape"),
    Sign(_DECIDES, "index-by-target", functions=("__getitem__",)),
    Sign(_DECIDES, "one-hot", functions=("one_hot",)),
    Sign(_DECIDES, "packed-sequence", at=_is(nn.RNNBase), functions=("_pack_padded_sequence",)),
    Sign("nested_tensor", "nested-tensors"),
    Sign("memory_format", "memory-format"),
    Sign(_NORM, "batchnorm-in-training", at=_is(BATCH_NORM, training=True)),
    Sign("Expected more than 1 value per channel when", "batchnorm-of-one-value", ValueError),
    Sign(_NORM, "instancenorm-with-statistics", at=_is(INSTANCE_NORM, training=True)),
    Sign("that would mutate a captured Tensor", "captured-buffer"),
    Sign(_BROADCAST, "in-place-into-zeros"),
    Sign("This happened due to `other` being vmapped over", "copy-into-zeros"),
    Sign(_BROADCAST, "recurrent-layer", at=_is(nn.RNNBase, nn.RNNCellBase)),
    Sign(_RENORM, "embedding-max-norm", at=_has("max_norm")),
    Sign("vmap: called random operation while in randomness error mode", "random-draws"),
    Sign(_SETUP_CONTEXT, "autograd-function"),
    Sign(_SETUP_CONTEXT, "custom-operator", functions=(CUSTOM_OPERATOR,)),
    Sign("_NoopSaveInputs, but it does not have vmap support", "checkpointing"),  # before 2.13
    Sign("but it does not have vmap support", "autograd-function-without-vmap"),
    Sign(_SETUP_CONTEXT, "full-backward-hook", at=_has("_backward_hooks", "_backward_pre_hooks")),
    Sign("don't yet support saved tensor hooks", "checkpointing"),
    Sign("backward() called inside a functorch transform", "backward-inside"),
    Sign("You are attempting to call Tensor.requires_grad_()", "requires-grad-inside"),
    Sign(
        "Could not run 'aten::view' with arguments from the 'Sparse",
        "sparse-embedding",
        NotImplementedError,
        at=_has("sparse"),
    ),
    Sign(_HALF, "layernorm-under-autocast", at=_is(nn.LayerNorm, nn.GroupNorm)),
    Sign("mat1 and mat2 shapes cannot be multiplied", "missing-batch-dimension"),
    Sign("Expected f(*args) to return a scalar Tensor", "loss-is-no-scalar"),
    Sign("functional_call got multiple values for keys", "tied-names", ValueError),
    Sign(f"{_STATELESS} nn.DataParallel module", "data-parallel", at=_is(nn.DataParallel)),
    Sign(f"{_STATELESS} Jitted modules", "scripted-module", at=_is(torch.jit.ScriptModule)),
    Sign("Attempted to use an uninitialized parameter", "lazy-module", ValueError, _uninitialized),
)
FALLBACKS = {
    "mkldnn_rnn_layer": "lstm-fallback",
    "_scaled_dot_product": "fused-attention",
}
"""By how the operation that a warning names begins, its entry; else it is `operator-fallback`."""


def one_line(error: Exception) -> str:
    """Return the message of an error without line breaks."""
    return " ".join(str(error).split())


def describe(error: Exception) -> str:
    """Return the type of an error, and the beginning of its message."""
    message = textwrap.shorten(one_line(error), 100, placeholder=" ...")
    return f"{type(error).__name__}: {message}"
