"""Networks of one architecture as one set of tensors, `(M, *shape)`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from helpers.ensembles.likeness import tensors_of_each
from helpers.optimizers import Tensors


@dataclass(frozen=True)
class Ensemble:
    """M networks of one architecture."""

    model: nn.Module
    """The first of them, which runs with the tensors of each."""
    params: Tensors
    """What training changes, by name: `(M, *shape)`, detached."""
    buffers: Tensors
    """Buffers and frozen parameters, by name: `(M, *shape)`, detached."""

    def __len__(self) -> int:
        return len(next(iter((self.params | self.buffers).values())))

    def member(self, index: int) -> Tensors:
        """Return the tensors of one network, as its `load_state_dict` takes them.

        A tied weight is there by each of its names, and a buffer that is not persistent is not.
        """
        # Of a tied tensor, the ensemble has the first name.
        first = dict(chain(self.model.named_parameters(), self.model.named_buffers()))
        names = {id(tensor): name for name, tensor in first.items()}
        stacked = self.params | self.buffers
        state = self.model.state_dict(keep_vars=True).items()
        return {name: stacked[names[id(t)]][index] for name, t in state if id(t) in names}


def initialise(build: Callable[[], nn.Module], seeds: Iterable[int]) -> Ensemble:
    """Make one network from each seed, as it would be made alone after `torch.manual_seed`.

    The random stream of the CPU is left as it was.

    Raises:
        ValueError: There is no seed, or the networks cannot be stacked; see `stack`.
    """
    models = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.manual_seed(seed)
            models.append(build())
    if not models:
        raise ValueError("seeds must hold a seed at least, got none")
    return stack(models)


def stack(models: Sequence[nn.Module]) -> Ensemble:
    """Stack networks that are there already.

    Unlike `torch.func.stack_module_state`, it compares the layers and not their tensors alone: a
    Tanh would silently become the first network's ReLU. Compared are classes, modes, tensors, and
    attributes that are numbers, texts, tensors or functions, of which only the names count. What
    differs must be a parameter or a buffer. Tensors are copied. The first model is what runs.

    Raises:
        ValueError: There is no model, or no tensor in it; one lies in several processes or is
            scripted; two differ in what is compared, or share a tensor.
    """
    models = list(models)
    if not models:
        raise ValueError("models must hold a model at least, got none")
    tensors = tensors_of_each(models)
    if not tensors[0]:
        raise ValueError("models must have a parameter or a buffer at least, got none")
    stacked = {name: torch.stack([each[name].detach() for each in tensors]) for name in tensors[0]}
    trained = [name for name, p in models[0].named_parameters() if p.requires_grad]
    return Ensemble(
        model=models[0],
        params={name: stacked[name] for name in trained},
        buffers={name: tensor for name, tensor in stacked.items() if name not in trained},
    )
