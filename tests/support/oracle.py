"""Values to compare with, made by hand: a loop over the samples that shares no code with helpers.

`Truth` builds a model anew for each sample; `oracle` copies one that is there.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.gradients import func_gradients, loop_gradients
from tests.support.zoo import Case, eagerly


def refused(*words: str, error: type[Exception] = ValueError) -> AbstractContextManager[object]:
    """Expect an error of one line that holds these words."""
    return pytest.raises(
        error, check=lambda e: "\n" not in str(e) and all(each in str(e) for each in words)
    )


METHODS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "loop": loop_gradients,
    "func": func_gradients,
    "func in chunks of 2": functools.partial(func_gradients, chunk_size=2),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())

# Largest difference over the largest entry of all gradients together. One rounding is 1e-16 in
# float64 and 6e-8 in float32; sums of at most a few thousand terms, summed in another order,
# leave some hundred of them.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5}
TOLERANCE = TOLERANCES[torch.float64]


class Truth:
    """What every way has to return for a case, from a model that is built anew for each sample."""

    def __init__(self, make: Callable[[], Case]) -> None:
        self._make = make
        self.case = make()  # nobody runs this one

    @functools.cached_property
    def gradients(self) -> dict[str, Tensor]:
        return self._differentiate(lambda case, x, target: case.loss_fn(case.model(x), target))

    @functools.cached_property
    def outputs(self) -> Tensor:
        rows = []
        for index in range(len(self.case.data)):
            case = self._make()
            with by_hand():
                rows.append(case.model(case.data[index : index + 1]).detach().clone())
        return torch.cat(rows)

    @functools.cached_property
    def jacobians(self) -> Tensor:
        """`(B, Y, P)`, of a model whose outputs are `(B, Y)`."""
        columns = []
        for place in range(self.outputs.shape[1]):
            rows = self._differentiate(lambda case, x, _, y=place: case.model(x)[0, y])
            columns.append(self._flat(rows))
        return torch.stack(columns, 1)

    @property
    def norms(self) -> Tensor:
        return self._flat(self.gradients).norm(dim=1)

    @property
    def limit(self) -> float:
        """A limit that clips some samples and not others."""
        return self.norms.median().item() or 1.0

    @property
    def clipped_sum(self) -> dict[str, Tensor]:
        factors = (self.limit / self.norms).clamp(max=1)
        rows = self.gradients.items()
        return {n: torch.einsum("b,b...->...", factors.to(g.dtype), g) for n, g in rows}

    def _flat(self, rows: dict[str, Tensor]) -> Tensor:
        size = len(self.case.data)
        nothing = torch.zeros(size, 0, dtype=torch.float64)
        return torch.cat([nothing, *(each.reshape(size, -1) for each in rows.values())], 1)

    def _differentiate(self, scalar: Callable[[Case, Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        """Read `.grad` after `.backward()`, of a model that has met no other sample."""
        own = {n: p for n, p in self.case.model.named_parameters() if p.requires_grad}
        rows: dict[str, list[Tensor]] = {name: [] for name in own}
        for index in range(len(self.case.data)):
            case = self._make()
            with by_hand():
                result = scalar(case, *(part[index : index + 1] for part in case.batch))
                if result.requires_grad:
                    result.backward()
            for name, parameter in case.model.named_parameters():
                if name in rows:
                    nothing = torch.zeros_like(parameter)
                    rows[name].append(nothing if parameter.grad is None else parameter.grad)
        return {
            name: (torch.stack(each) if each else own[name].new_zeros(0, *own[name].shape)).detach()
            for name, each in rows.items()
        }


@contextmanager
def by_hand() -> Iterator[None]:
    """Normalise by elementary functions: torch's own backward is wrong for a batch of one."""

    def normalize(inputs, mean, var, weight, bias, eps, dims):
        shape = (1, -1, *(1,) * (inputs.dim() - 2))
        if mean is None:
            mean, var = inputs.mean(dims, keepdim=True), inputs.var(dims, False, keepdim=True)
        else:
            mean, var = mean.view(shape), var.view(shape)
        outputs = (inputs - mean) / (var + eps).sqrt()
        outputs = outputs if weight is None else outputs * weight.view(shape)
        return outputs if bias is None else outputs + bias.view(shape)

    def batch_norm(inputs, mean, var, weight=None, bias=None, training=False, momentum=0, eps=1e-5):
        mean = None if training else mean
        return normalize(inputs, mean, var, weight, bias, eps, (0, *range(2, inputs.dim())))

    def instance_norm(
        inputs, mean=None, var=None, weight=None, bias=None, use_input_stats=True, _=0.1, eps=1e-5
    ):
        mean, var = (None, None) if use_input_stats else (mean, var)
        return normalize(inputs, mean, var, weight, bias, eps, tuple(range(2, inputs.dim())))

    ignored = warnings.catch_warnings(action="ignore")
    with pytest.MonkeyPatch.context() as patch, eagerly(), ignored:
        patch.setattr(F, "batch_norm", batch_norm)
        patch.setattr(F, "instance_norm", instance_norm)
        patch.setattr(torch, "cond", lambda pred, yes, no, args: (yes if pred else no)(*args))
        yield


def oracle(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    data: Tensor,
    targets: Tensor,
    wrt: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Compute the gradients by copies of a model in float64, one for each sample."""
    wanted = [n for n, p in model.named_parameters() if p.requires_grad] if wrt is None else [*wrt]

    def make() -> Case:
        case = Case(copy.deepcopy(model), data.detach(), targets.detach(), loss_fn)
        case.model.zero_grad()
        for name, parameter in case.model.named_parameters():
            parameter.requires_grad_(name in wanted)
        return case.to(torch.float64)

    rows = Truth(make).gradients
    return {name: rows[name] for name in wanted}


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Compare names and their order, shapes, and values relative to the largest of all."""
    assert list(got) == list(expected)
    assert {n: t.shape for n, t in got.items()} == {n: t.shape for n, t in expected.items()}
    largest = max((t.abs().max().item() for t in expected.values() if t.numel()), default=0.0)
    for name, tensor in got.items():
        torch.testing.assert_close(
            tensor.to(expected[name].dtype),
            expected[name],
            rtol=0,
            atol=tolerance * (largest or 1.0),
            msg=lambda text, name=name: f"{name}: {text}",
        )
