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

    def is_meant(raised: BaseException) -> bool:
        message = str(raised)
        return "\n" not in message and all(word in message for word in words)

    return pytest.raises(error, check=is_meant)


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
        sums = {}
        for name, rows in self.gradients.items():
            sums[name] = torch.einsum("b,b...->...", factors.to(rows.dtype), rows)
        return sums

    def _flat(self, rows: dict[str, Tensor]) -> Tensor:
        """Join gradients to `(B, P)`, where P may be 0."""
        size = len(self.case.data)
        parts = [torch.zeros(size, 0, dtype=torch.float64)]
        for each in rows.values():
            parts.append(each.reshape(size, -1))
        return torch.cat(parts, 1)

    def _differentiate(self, scalar: Callable[[Case, Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        """Read `.grad` after `.backward()`, of a model that has met no other sample."""
        size = len(self.case.data)
        gradients = {}
        for name, parameter in self.case.model.named_parameters():
            if parameter.requires_grad:
                gradients[name] = parameter.new_zeros(size, *parameter.shape).detach()
        for index in range(size):
            case = self._make()
            one = slice(index, index + 1)
            with by_hand():
                result = scalar(case, case.data[one], case.targets[one])
                if result.requires_grad:
                    result.backward()
            for name, parameter in case.model.named_parameters():
                if name in gradients and parameter.grad is not None:
                    gradients[name][index] = parameter.grad
        return gradients


@contextmanager
def by_hand() -> Iterator[None]:
    """Normalise by elementary functions: torch's own backward is wrong for a batch of one."""

    def normalize(inputs, mean, var, weight, bias, eps, dims):
        shape = [1, -1] + [1] * (inputs.dim() - 2)  # one number for each channel
        if mean is None:
            mean = inputs.mean(dims, keepdim=True)
            var = inputs.var(dims, unbiased=False, keepdim=True)
        else:
            mean, var = mean.view(shape), var.view(shape)
        outputs = (inputs - mean) / (var + eps).sqrt()
        if weight is not None:
            outputs = outputs * weight.view(shape)
        if bias is not None:
            outputs = outputs + bias.view(shape)
        return outputs

    def batch_norm(inputs, mean, var, weight=None, bias=None, training=False, momentum=0, eps=1e-5):
        if training:
            mean = None
        dims = [dim for dim in range(inputs.dim()) if dim != 1]
        return normalize(inputs, mean, var, weight, bias, eps, dims)

    def instance_norm(
        inputs, mean=None, var=None, weight=None, bias=None, use_input_stats=True, _=0.1, eps=1e-5
    ):
        if use_input_stats:
            mean = None
        return normalize(inputs, mean, var, weight, bias, eps, list(range(2, inputs.dim())))

    def cond(pred, true_fn, false_fn, operands):
        return true_fn(*operands) if pred else false_fn(*operands)

    ignored = warnings.catch_warnings(action="ignore")
    with pytest.MonkeyPatch.context() as patch, eagerly(), ignored:
        patch.setattr(F, "batch_norm", batch_norm)
        patch.setattr(F, "instance_norm", instance_norm)
        patch.setattr(torch, "cond", cond)
        yield


def oracle(
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    data: Tensor,
    targets: Tensor,
    wrt: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Compute the gradients by copies of a model in float64, one for each sample."""
    if wrt is None:
        wanted = [name for name, p in model.named_parameters() if p.requires_grad]
    else:
        wanted = list(wrt)

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
    largest = 0.0
    for name, tensor in expected.items():
        assert got[name].shape == tensor.shape, name
        if tensor.numel():
            largest = max(largest, tensor.abs().max().item())
    for name, tensor in expected.items():
        torch.testing.assert_close(
            got[name].to(tensor.dtype),
            tensor,
            rtol=0,
            atol=tolerance * (largest or 1.0),
            msg=lambda text, name=name: f"{name}: {text}",
        )
