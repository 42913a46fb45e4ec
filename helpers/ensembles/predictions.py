"""All networks run on the same inputs, and how one of them is called under `vmap`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import debug_unwrap, vjp, vmap

from helpers.ensembles.stacks import Ensemble
from helpers.optimizers import Tensors
from helpers.transforms import checks
from helpers.transforms.batches import Batch, Tree, call, mapped, tensors_in
from helpers.transforms.known_wrong import VMAP, Refusal, Watched
from helpers.transforms.recurrence import RECURRENT
from helpers.transforms.samples import graph, running, standing_in


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
    model = ensemble.model
    # For recurrent layers vmap has a rule only where they are differentiated.
    recurrent = any(isinstance(part, RECURRENT) for part in model.modules())

    def run(params: Tensors, buffers: Tensors) -> Any:
        own = {name: buffer.clone() for name, buffer in buffers.items()}

        def compute(params: Tensors) -> Any:
            return run_member(model, params | own, lambda: call(model, *batch.whole()))

        with running(model, ()):  # put back after each chunk
            outputs = vjp(compute, params)[0] if recurrent else compute(params)
        return _each(Tensor.detach, outputs)

    with explained():
        return vmap(run, chunk_size=chunk_size)(ensemble.params, ensemble.buffers)


def run_member(model: nn.Module, tensors: Tensors, function: Callable[[], Any]) -> Any:
    """Call a function that runs the model, while the model's tensors are those of a network."""
    own = tensors_of(model)
    with Watched(VMAP), standing_in(own, tensors):
        # New tensors, since those of the model become its own again.
        value = _each(lambda tensor: tensor.view_as(tensor), function())
    names = {id(tensor): name for name, tensor in own.items()}
    for tensor in map(debug_unwrap, tensors_in(value)):
        for node in graph(tensor):
            if name := names.get(id(getattr(node, "variable", None))):
                raise ValueError(
                    f"the model holds what was computed from {name} of the first network, and is "
                    "not that of the others: compute it in the forward"
                )
    return value


def tensors_of(model: nn.Module) -> Tensors:
    """Return the parameters and buffers of a model, a buffer by each of its names."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers(remove_duplicate=False))}


def _each(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Change each tensor of a tree."""
    return mapped(lambda _, leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, tree, "")


def check_stackable(batch: Batch) -> None:
    """Raise ValueError if samples do not make one tensor."""
    if len(batch.tensors) < len(batch.leaves):
        raise ValueError("samples of unequal length cannot be taken together: pad them")


@contextmanager
def explained() -> Iterator[None]:
    """Raise what torch says of networks that it cannot run together as one sentence."""
    try:
        yield
    except Refusal as error:
        raise ValueError(f"such networks cannot be taken together: {error}") from error
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
