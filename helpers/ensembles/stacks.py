"""Networks of one architecture as one set of tensors, `(M, *shape)`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from helpers.ensembles.likeness import facts_of
from helpers.optimizers import Tensors
from helpers.transforms import checks


@dataclass(frozen=True)
class Ensemble:
    """M networks of one architecture."""

    model: nn.Module
    """The first network, whose code runs all of them."""
    params: Tensors
    """What training changes, by name: `(M, *shape)`, detached."""
    buffers: Tensors
    """Buffers and frozen parameters, by name: `(M, *shape)`, detached."""

    def __len__(self) -> int:
        return len(next(iter((self.params | self.buffers).values())))

    def member(self, index: int) -> Tensors:
        """Return the tensors of one network, as its `load_state_dict` takes them."""
        # For a tied tensor the ensemble has only the first name, the state all.
        tensors = chain(self.model.named_parameters(), self.model.named_buffers())
        names, stacked = {id(tensor): name for name, tensor in tensors}, self.params | self.buffers
        state = self.model.state_dict(keep_vars=True).items()
        return {name: stacked[names[id(t)]][index] for name, t in state if id(t) in names}


def initialize(build: Callable[[], nn.Module], seeds: Iterable[int]) -> Ensemble:
    """Build one network per seed, after `torch.manual_seed`; the CPU generator is restored.

    Raises:
        ValueError: There is no seed, or the networks cannot be stacked; see `stack`.
    """
    models = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.manual_seed(seed)
            models.append(build())
    return stack(models)


def stack(models: Sequence[nn.Module]) -> Ensemble:
    """Stack copies of the networks' tensors; the first network's code runs all of them.

    Unlike `torch.func.stack_module_state`, this compares the networks: classes, modes, shapes of
    tensors, and attributes that are numbers, strings, tensors or functions (by name).

    Raises:
        ValueError: There is no model, or no tensor in it; a model is spread over processes,
            scripted, or a DataParallel; two models differ or share a tensor.
    """
    owners: dict[int, tuple[int, str]] = {}
    tensors: list[Tensors] = []
    for index, model in enumerate(models):
        checks.check_one_process(model)
        checks.check_callable(model)
        ours, theirs = facts_of(models[0]), facts_of(model)
        for fact in ours | theirs:
            first, second = (facts.get(fact, "missing") for facts in (ours, theirs))
            if first != second:
                raise ValueError(
                    "models may differ in the values of parameters and buffers alone: "
                    f"{fact} is {first} in model 0 and {second} in model {index}"
                )
        tensors.append(dict(model.named_parameters()) | dict(model.named_buffers()))
        for name, tensor in tensors[-1].items():
            owner, its = owners.setdefault(tensor.untyped_storage().data_ptr(), (index, name))
            if owner != index and tensor.numel():
                raise ValueError(
                    "models must not share tensors (each would get its own copy): "
                    f"{name} of model {index} is {its} of model {owner}"
                )
    if not tensors or not tensors[0]:
        raise ValueError("there must be at least 1 model, with a parameter or a buffer")
    stacked = {
        name: torch.stack([member[name].detach() for member in tensors]) for name in tensors[0]
    }
    params = {n: stacked[n] for n, p in models[0].named_parameters() if p.requires_grad}
    buffers = {name: tensor for name, tensor in stacked.items() if name not in params}
    return Ensemble(models[0], params, buffers)
