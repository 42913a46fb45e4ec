"""All networks run on the same inputs, and how one of them is called under `vmap`."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from helpers.ensembles.stacks import Ensemble
from helpers.optimizers import Tensors
from helpers.transforms import checks
from helpers.transforms.batches import Batch, Tree, call
from helpers.transforms.call import RECURRENT, ParameterAliases, batchable_recurrence, on_meta
from helpers.transforms.eager import eager


@torch.no_grad()
def predict(ensemble: Ensemble, inputs: Tree, *, chunk_size: int | None = None) -> Any:
    """Run every network on the same inputs.

    Args:
        ensemble: M networks, in evaluation mode or without random numbers. They are not changed.
        inputs: `(N, ...)`, or a tree of such tensors.
        chunk_size: How many networks to run at a time; `None` means all.

    Returns:
        `(M, N, ...)`, detached; of a model that returns several tensors, these in what it returns.

    Raises:
        TypeError: `inputs` is no tree of tensors.
        ValueError: The chunk is refused, samples are of unequal length, or a forward draws random
            numbers.
    """
    checks.check_options(chunk_size)
    batch = Batch(inputs=inputs)
    check_stackable(batch)

    def run(params: Tensors, buffers: Tensors) -> Any:
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        model = on_meta(ensemble.model)  # a new one for each chunk
        recurrent = any(isinstance(part, RECURRENT) for part in model.modules())
        with batchable_recurrence(model):
            # For recurrent layers vmap has a rule only where they are differentiated.
            if recurrent:
                return vjp(lambda p: call_member(ensemble, model, p | own, *batch.whole()), params)[
                    0
                ]
            return call_member(ensemble, model, params | own, *batch.whole())

    with explained(), eager():
        return vmap(run, chunk_size=chunk_size)(ensemble.params, ensemble.buffers)


def call_member(ensemble: Ensemble, model: nn.Module, tensors: Tensors, inputs: Tree) -> Any:
    """Run a copy of the structure with the tensors of a network, wherever it meets its own."""
    ids = {
        id(tensor): name
        for each in (model, ensemble.first)
        for name, tensor in chain(each.named_parameters(), each.named_buffers())
    }
    computed = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and getattr(value, "computed", False):
                computed[f"{name}.{key}"] = value
    ids |= {id(value): name for name, value in computed.items()}
    with ParameterAliases(ids, tensors | computed) as aliases:
        outputs = call(lambda *args, **named: functional_call(model, tensors, args, named), inputs)
    if met := aliases.met.intersection(computed):
        raise ValueError(
            f"{met.pop().strip('.')} was computed from the parameters of the first network, and is "
            "not that of the others: compute it in the forward"
        )
    return outputs


def check_stackable(batch: Batch) -> None:
    """Raise ValueError if samples do not make one tensor."""
    if len(batch.tensors) < len(batch.leaves):
        raise ValueError("samples of unequal length cannot be taken together: pad them")


@contextmanager
def explained() -> Iterator[None]:
    """Raise what torch says of networks that it cannot run together as one sentence."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        if "randomness error mode" in said:
            raise ValueError(
                "a network draws random numbers (dropout in training mode?) and nothing says "
                "whether networks share them: call .eval() on all, or give train a randomness"
            ) from error
        if "vmap" not in str(error) and "atching rule" not in str(error):
            raise
        raise ValueError(f"such networks cannot be taken together by torch.vmap: {said}") from error
