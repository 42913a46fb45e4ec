"""What the networks of an ensemble must share, and what they must not."""

from collections.abc import Sequence
from itertools import chain

from torch import nn

from helpers.optimizers import Tensors
from helpers.transforms import checks
from helpers.transforms.settings import closing_over, settings


def tensors_of_each(models: Sequence[nn.Module]) -> list[Tensors]:
    """Collect the parameters and buffers of networks that one structure can stand for.

    Args:
        models: M networks, at least one.

    Returns:
        `{name: tensor}` for each: the same names and shapes.

    Raises:
        TypeError, ValueError: As in `helpers.ensembles.stack`.
    """
    for index, model in enumerate(models):
        if not isinstance(model, nn.Module):
            raise TypeError(f"models must be modules, got {type(model).__name__}")
        checks.check_one_process(model)
        checks.select_parameters(model)  # which refuses a lazy layer
        _check_alike(models[0], model, index)
    place = closing_over(models[0])
    if place is not None:
        raise ValueError(
            f"models must not close over their own layers: {place} of model 0 leads to a function "
            "that does, and would run them for all networks; take them from the module that the "
            "function is given"
        )
    tensors = [dict(model.named_parameters()) | dict(model.named_buffers()) for model in models]
    for index, own in enumerate(tensors):
        for name in own.keys() ^ tensors[0].keys():
            here, there = (index, 0) if name not in own else (0, index)
            raise ValueError(
                f"models must have one architecture: {name} is tied to another name in model "
                f"{here} and has numbers of its own in model {there}"
            )
    if not tensors[0]:
        raise ValueError(
            f"models must have a parameter or a buffer at least: model 0 is {_line(models[0])}"
        )
    _check_apart(tensors)
    return tensors


def _check_alike(first: nn.Module, model: nn.Module, index: int) -> None:
    """Refuse a model that the first one's structure cannot stand for."""
    ours, theirs = (dict(each.named_modules()) for each in (first, model))
    registered = {id(t) for each in (first, model) for t in each.parameters()}
    registered |= {id(t) for each in (first, model) for t in each.buffers()}
    for name in chain(ours, (name for name in theirs if name not in ours)):
        one, other = (_line(each.get(name)) for each in (ours, theirs))
        if one != other:
            raise ValueError(
                f"models must have one architecture: {name or 'the model'} is {one} in model 0 "
                f"and {other} in model {index}"
            )
        held = [settings(each[name], registered) for each in (ours, theirs)]
        for key in held[0] | held[1]:
            one, other = (each.get(key, "missing") for each in held)
            if one != other:
                while one[:60] == other[:60]:  # such texts may be long
                    one, other = one[20:], other[20:]
                raise ValueError(
                    f"models must have one architecture: {f'{name}.{key}'.lstrip('.')} is "
                    f"{one[:60]} in model 0 and {other[:60]} in model {index}; what differs "
                    "between networks must be a parameter or a buffer"
                )
        if ours[name].training != theirs[name].training:
            modes = [("eval", "train")[each[name].training] for each in (ours, theirs)]
            raise ValueError(
                f"models must have one mode: {name or 'the model'} is in {modes[0]} mode in model "
                f"0 and in {modes[1]} mode in model {index}; call .train() or .eval() on all"
            )


def _line(module: nn.Module | None) -> str:
    """Write a module by itself, with its tensors: Linear(3 -> 2), weight (2, 3)."""
    if module is None:
        return "missing"
    own = chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
    tensors = [
        f"{name} {tuple(t.shape)}{'' if t.requires_grad or t.grad_fn else ' fixed'} {t.dtype}"
        for name, t in own
    ]
    written = f"{type(module).__name__}({module.extra_repr()})"
    return ", ".join([written, *tensors])


def _check_apart(tensors: list[Tensors]) -> None:
    """Refuse models that share a tensor, which would come apart."""
    owners: dict[int, tuple[int, str]] = {}
    for index, own in enumerate(tensors):
        for name, tensor in own.items():
            if not tensor.numel():
                continue
            owner = owners.setdefault(tensor.untyped_storage().data_ptr(), (index, name))
            if owner[0] != index:
                raise ValueError(
                    f"models must not share tensors: {name} of model {index} is {owner[1]} of "
                    f"model {owner[0]}, and each would get a copy of its own; map over the others "
                    "and pass what is shared with in_dims=None"
                )
