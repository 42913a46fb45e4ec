"""Runs of a model under the bare transforms, for `diagnose`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from helpers.limits.diagnosis.inspection import listed
from helpers.limits.diagnosis.signs import FALLBACKS, SIGNS, Sign, describe, one_line
from helpers.limits.diagnosis.watch import Case, Watch
from helpers.transforms.batches import call
from helpers.transforms.checks import BATCH_NORM, INSTANCE_NORM
from helpers.transforms.recurrence import add_zero_state
from helpers.transforms.restore import Snapshot, preserved
from helpers.transforms.sequences import Sequences

UNKNOWN = "unknown"
"""The name of what no entry covers."""
_WRITES = ("in-place-into-zeros", "copy-into-zeros")


def trainable(model: nn.Module) -> list[str]:
    """List the parameters that require a gradient."""
    return [name for name, p in model.named_parameters() if p.requires_grad]


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put a model back at the end of a block, with the values of its parameters."""
    values = Snapshot(model.parameters())
    try:
        with preserved(model, trainable(model)):
            yield
    finally:
        values.restore()


def norms_in_eval(model: nn.Module) -> None:
    """Let normalisation layers use their stored statistics."""
    for module in model.modules():
        if isinstance(module, BATCH_NORM | INSTANCE_NORM):
            module.eval()


def transforms(case: Case) -> tuple[list[tuple[str, str, str]], dict[str, Tensor]]:
    """Run the bare composition; mend what raises as its entry says, and go on.

    Returns the entry, the place, and for what no entry covers, the error, up to the first error
    that cannot be mended here; and the gradients, none where anything was mended.
    """
    if any(isinstance(leaf, Sequences) for leaf in case.batch.leaves):
        return [("packed-sequence", "the batch", "")], {}
    found: list[tuple[str, str, str]] = []
    mended: set[str] = set()
    while True:
        with untouched(case.model):
            watch, error = _attempt(case, mended)
        if error is None:
            return [*found, *_fallbacks(watch)], {} if mended else watch.gradients
        sign = _explain(error, watch)
        name = sign.entry if sign else UNKNOWN
        place = _place(sign, watch)
        if name in _WRITES and "sample-into-buffer" not in mended:
            with untouched(case.model):
                second, other = _attempt(case, mended | {"sample-into-buffer"})
            if other is None or one_line(other) != one_line(error) or second.place != watch.place:
                name, place = "sample-into-buffer", watch.place
        found.append((name, place, "" if sign else describe(error)))
        if name not in _MENDED or name in mended:
            return found, {}
        mended.add(name)


def _attempt(case: Case, mended: set[str]) -> tuple[Watch, Exception | None]:
    """Run the bare composition with some causes mended."""
    model = case.model
    for name in mended:
        _MENDED[name](model)
    watch = Watch(model)
    loss_fn = watch.follow(case.loss_fn)
    params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    buffers = dict(model.named_buffers())
    dims = None
    if "sample-into-buffer" in mended:
        dims = 0
        buffers = {name: b.expand(len(case.batch), *b.shape).clone() for name, b in buffers.items()}

    def compute_loss(
        params: dict[str, Tensor], buffers: dict[str, Tensor], sample: tuple[Tensor, ...]
    ) -> Tensor:
        data, targets = case.batch.of_one(sample)
        swapped = params | buffers
        predictions = call(
            lambda *args, **named: functional_call(model, swapped, args, named), data
        )
        return loss_fn(predictions, targets)

    randomness = "different" if "random-draws" in mended else "error"
    compute = vmap(grad(compute_loss), in_dims=(None, dims, 0), randomness=randomness)
    try:
        with watch.hearing(), watch:
            leaves = tuple(leaf.clone() for leaf in case.batch.leaves)
            watch.gradients = compute(params, buffers, leaves)
    except Exception as error:  # to find out which is the purpose
        return watch, error
    return watch, None


def _without_hooks(model: nn.Module) -> None:
    for module in model.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()


def _with_zero_states(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            module.register_forward_pre_hook(add_zero_state, with_kwargs=True)


def _without(attribute: str, value: object) -> Callable[[nn.Module], None]:
    def mend(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                setattr(module, attribute, value)

    return mend


_MENDED: dict[str, Callable[[nn.Module], None]] = {
    "batchnorm-in-training": norms_in_eval,
    "batchnorm-of-one-value": norms_in_eval,
    "instancenorm-with-statistics": norms_in_eval,
    "recurrent-layer": _with_zero_states,
    "full-backward-hook": _without_hooks,
    "sparse-embedding": _without("sparse", False),
    "embedding-max-norm": _without("max_norm", None),
    "random-draws": lambda _: None,  # `_attempt` sets `randomness`
    "sample-into-buffer": lambda _: None,  # `_attempt` gives each sample its own
}


def _explain(error: Exception, watch: Watch) -> Sign | None:
    """Find what an error is a sign of: by its message, then by who raised it."""
    message = one_line(error)
    fitting = [sign for sign in SIGNS if isinstance(error, sign.error) and sign.fragment in message]
    near = watch.running or list(watch.names)
    special = [
        sign
        for sign in fitting
        if watch.raised_in in sign.functions or (sign.at and any(map(sign.at, near)))
    ]
    plain = [sign for sign in fitting if not sign.functions and not sign.at]
    return next(iter(special + plain + fitting), None)


def _place(sign: Sign | None, watch: Watch) -> str:
    """Name the modules that are at fault: all of the sign's kind, or else the innermost."""
    if sign and sign.at:
        alike = [name for module, name in watch.names.items() if sign.at(module)]
        if alike:
            return listed(alike)
    return watch.place


def _fallbacks(watch: Watch) -> Iterator[tuple[str, str, str]]:
    """Sort the operations that fell back by entry; a backward belongs to its forward."""
    places: dict[str, list[str]] = {}
    for operation, place in watch.fallbacks:
        starting = (entry for start, entry in FALLBACKS.items() if operation.startswith(start))
        name = next(starting, "operator-fallback")
        if place != "the backward pass" or name == "operator-fallback":
            forward = operation.removesuffix("_backward")
            known = any(forward in other for other, where in watch.fallbacks if where != place)
            if not (place == "the backward pass" and known):
                where = f"{place} ({operation})" if name == "operator-fallback" else place
                places.setdefault(name, []).append(where)
    for name, where in places.items():
        yield name, listed(where), ""
