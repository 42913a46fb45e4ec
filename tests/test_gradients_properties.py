"""Properties of per-sample gradients over shapes, batches, chunks and names drawn at will."""

import functools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers import gradients, jacobians
from tests.support.oracle import METHODS, TOLERANCES, assert_equal, oracle
from tests.support.zoo import Case, squared

examples = functools.partial(settings, deadline=None, derandomize=True, database=None)
sizes, batches, seeds = st.integers(1, 4), st.integers(0, 5), st.integers(0, 2**16)
chunks = st.one_of(st.none(), st.integers(1, 7))
methods = st.sampled_from(sorted(METHODS))


def case_of(model: nn.Module, shape: tuple[int, ...], batch_size: int, dtype: torch.dtype) -> Case:
    data = torch.randn(batch_size, *shape, dtype=dtype)
    with torch.no_grad():
        outputs = model.to(dtype)(torch.zeros(1, *shape, dtype=dtype))
    targets = torch.randn(batch_size, *outputs.shape[1:], dtype=dtype)
    return Case(model, data, targets, squared)


@st.composite
def networks(draw: st.DrawFn, batches: st.SearchStrategy[int] = batches) -> Case:
    """Fully connected, with some weights frozen, some without a bias, some layers used twice."""
    torch.manual_seed(draw(seeds))
    width = first = draw(sizes)
    layers: list[nn.Module] = []
    for _ in range(draw(sizes)):
        following = draw(sizes)
        layers += [nn.Linear(width, following, bias=draw(st.booleans())), nn.Tanh()]
        if width == following and draw(st.booleans()):
            layers.append(layers[-2])
        width = following
    model = nn.Sequential(*layers)
    for parameter in model.parameters():
        parameter.requires_grad_(draw(st.integers(0, 3)) > 0)
    return case_of(model, (first,), draw(batches), draw(st.sampled_from(list(TOLERANCES))))


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """One or two dimensions; groups, strides, dilation and padding."""
    torch.manual_seed(draw(seeds))
    dimensions, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    channels, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, stride, dilation = (draw(st.integers(1, n)) for n in (3, 2, 2))
    convolution = (nn.Conv1d if dimensions == 1 else nn.Conv2d)(
        channels, outputs, kernel, stride, draw(st.integers(0, 2)), dilation, groups
    )
    smallest = dilation * (kernel - 1) + 3  # leaves two outputs, since GroupNorm refuses one
    shape = (channels, *(draw(st.integers(smallest, smallest + 1)) for _ in range(dimensions)))
    model = nn.Sequential(convolution, nn.GroupNorm(groups, outputs), nn.Tanh())
    return case_of(model, shape, draw(batches), torch.float64)


@examples(max_examples=100)
@given(st.one_of(networks(), convolutions()), methods, st.data())
def test_any_method_equals_the_oracle_for_any_names(case, method, data):
    names = [name for name, _ in case.model.named_parameters()]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    wrt = data.draw(st.sampled_from([None, chosen]))
    got = METHODS[method](*case.args, wrt=wrt)
    assert_equal(got, oracle(*case.args, wrt=wrt), TOLERANCES[case.data.dtype])


@examples(max_examples=60)
@given(networks(), chunks)
def test_chunks_change_nothing(case, chunk_size):
    got = gradients.func_gradients(*case.args, chunk_size=chunk_size)
    # Products of other shapes may be summed in another order.
    tolerance = TOLERANCES[case.data.dtype]
    assert_equal(
        {name: tensor.double() for name, tensor in got.items()},
        {name: tensor.double() for name, tensor in gradients.func_gradients(*case.args).items()},
        tolerance,
    )


@examples(max_examples=60)
@given(networks(batches=st.integers(1, 5)), methods, st.data())
def test_a_sample_does_not_see_the_others(case, method, data):
    chosen = data.draw(st.lists(st.integers(0, len(case.data) - 1), max_size=6))
    whole = METHODS[method](*case.args)
    some = METHODS[method](case.model, squared, case.data[chosen], case.targets[chosen])
    expected = {name: tensor[chosen].double() for name, tensor in whole.items()}
    assert_equal(some, expected, TOLERANCES[case.data.dtype])


@examples(max_examples=60)
@given(networks(), methods, st.sampled_from([-3.0, -0.5, 0.0, 2.0, 8.0]))
def test_gradients_are_linear_in_the_loss(case, method, factor):
    def scaled(predictions: Tensor, targets: Tensor) -> Tensor:
        return factor * squared(predictions, targets) + 3

    got = METHODS[method](case.model, scaled, *case.batch)
    whole = METHODS[method](*case.args)
    expected = {name: factor * tensor.double() for name, tensor in whole.items()}
    assert_equal(got, expected, TOLERANCES[case.data.dtype])


@examples(max_examples=60)
@given(networks(), chunks)
def test_jacobians_contract_to_gradients_and_unflatten(case, chunk_size):
    flat = jacobians.func_jacobians(case.model, case.data, chunk_size=chunk_size)
    named = jacobians.unflatten_jacobians(flat, case.model)
    parameters = dict(case.model.named_parameters())
    for name, block in named.items():
        assert block.shape == (*flat.shape[:2], *parameters[name].shape)
    blocks = [block.flatten(2) for block in named.values()]
    assert torch.equal(torch.cat([flat[:, :, :0], *blocks], dim=2), flat)
    residuals = (case.model(case.data) - case.targets).detach()  # the loss's gradient at outputs
    rows = torch.einsum("byp,by->bp", flat, residuals)
    assert_equal(
        jacobians.unflatten_jacobians(rows, case.model),
        oracle(*case.args),
        TOLERANCES[case.data.dtype],
    )
