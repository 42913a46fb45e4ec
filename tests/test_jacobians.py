"""Full per-sample Jacobians against a loop of their own, and the way from flat to named."""

import copy
import functools
import re

import pytest
import torch
from torch import Tensor, nn

from helpers.jacobians import func_jacobians, loop_jacobians, unflatten_jacobians
from helpers.transforms.randomness import RANDOMNESS
from tests.support.oracle import TOLERANCES, assert_equal, oracle
from tests.support.zoo import Apply, make

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*which torch.vmap takes one sample"),
    pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning"),
]
METHODS = {
    "loop": loop_jacobians,
    "func": func_jacobians,
    "func in chunks of 1": functools.partial(func_jacobians, chunk_size=1),
    "func in chunks of 2": functools.partial(func_jacobians, chunk_size=2),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
NAMES = """linear|no bias|scalars|tied weight|shared layer|frozen|unused|no_grad inside
buffer counts|buffer in place|buffer rebound|stash|weight norm hook|weight norm
spectral norm|embedding|lstm|lstm None|gru|rnn cell|group norm
instance norm tracking|batch norm eval|grouped|mlp"""
every_model = pytest.mark.parametrize("name", re.split(r"[|\n]", NAMES))


def loop_of_the_test(model: nn.Module, data: Tensor) -> Tensor:
    """Run a fresh float64 copy for each sample and output; read `.grad` after `.backward()`."""
    rows = []
    for sample in data.detach().split(1):
        sample = sample.double() if sample.is_floating_point() else sample
        columns = []
        for index in range(copy.deepcopy(model).double()(sample).shape[1]):
            fresh = copy.deepcopy(model).double()
            fresh.zero_grad()
            output = fresh(sample)[0, index]
            if output.requires_grad:
                output.backward()
            wanted = [p for p in fresh.parameters() if p.requires_grad]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
            columns.append(torch.cat([grad.detach().flatten() for grad in grads]))
        rows.append(torch.stack(columns))
    return torch.stack(rows)


@functools.cache
def of_the_zoo(name: str, dtype: torch.dtype) -> Tensor:
    case = make(name).to(dtype)
    return loop_of_the_test(case.model, case.data)


@every_method
@every_model
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equals_the_loop_of_the_test(name, dtype, method):
    case = make(name).to(dtype)
    expected = of_the_zoo(name, dtype)
    before = copy.deepcopy(case.model).state_dict()
    got = method(case.model, case.data)
    assert (got.dtype, got.requires_grad, got.is_leaf) == (dtype, False, True)
    assert_equal({"": got}, {"": expected}, TOLERANCES[dtype])
    assert all(torch.equal(tensor, before[key]) for key, tensor in case.model.state_dict().items())
    assert all(type(p) is nn.Parameter and p.grad is None for p in case.model.parameters())
    assert "activation" not in vars(case.model)
    copy.deepcopy(case.model)


@every_method
def test_a_linear_layer_by_hand(method):
    case = make("linear")
    identity = torch.eye(2, dtype=torch.float64)
    weight = torch.einsum("yo,bi->byoi", identity, case.data).flatten(2)
    by_hand = torch.cat([weight, identity.expand(3, 2, 2)], dim=2)
    torch.testing.assert_close(method(case.model, case.data), by_hand, rtol=0, atol=1e-15)


@every_method
@every_model
def test_contracted_with_the_loss_gradient_they_are_the_per_sample_gradients(name, method):
    case = make(name)
    expected = oracle(*case.args)
    outputs = torch.cat([copy.deepcopy(case.model)(row).detach() for row in case.data.split(1)])
    outputs.requires_grad_()
    pairs = zip(outputs.split(1), case.targets.split(1), strict=True)
    sum(case.loss_fn(output, target) for output, target in pairs).backward()
    flat = torch.einsum("byp,by->bp", method(case.model, case.data), outputs.grad)
    named = unflatten_jacobians(flat, case.model)
    assert_equal(named, expected, TOLERANCES[torch.float64])


@every_method
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_called_where_gradients_are_off(mode, method):
    case = make("mlp")
    expected = loop_of_the_test(case.model, case.data)
    with mode():
        got = method(case.model, case.data.clone())
    assert_equal({"": got}, {"": expected}, TOLERANCES[torch.float64])
    assert not got.is_inference()


@every_method
def test_results_without_a_number(method):
    case = make("frozen")
    assert method(case.model, case.data[:0]).shape == (0, 3, 3 + 9)
    case.model.requires_grad_(False)
    assert method(case.model, case.data).shape == (3, 3, 0)
    assert method(nn.Flatten(), case.data).shape == (3, 3, 0)
    counting = make("buffer counts")
    method(counting.model, counting.data[:0])
    assert counting.model.calls == 1


@pytest.mark.parametrize("lead", [(2, 4), (5,), (), (0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("case", ["scalars", "frozen", "grouped"])
def test_unflatten_is_the_way_back(case, lead):
    model = make(case).model
    wanted = {n: p for n, p in model.named_parameters() if p.requires_grad}
    count = sum(parameter.numel() for parameter in wanted.values())
    flat = torch.randn(*lead, count)
    named = unflatten_jacobians(flat, model)
    assert list(named) == list(wanted)
    for name, parameter in wanted.items():
        assert named[name].shape == (*lead, *parameter.shape)
    blocks = [block.reshape(*lead, wanted[n].numel()) for n, block in named.items()]
    assert torch.equal(torch.cat(blocks, dim=-1), flat)
    flat.zero_()
    assert not any(block.any() for block in named.values()), "copies, not views"


@pytest.mark.parametrize("shape", [(2, 3, 7), (9, 2), (2, 9), ()], ids=str)
def test_unflatten_refuses_another_number_of_columns(shape):
    sentence = (
        "the last dimension must be P = 8, the parameters of this model that require a gradient, "
        f"got shape {shape}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        unflatten_jacobians(torch.zeros(shape), nn.Linear(3, 2))


OUTPUTS = [
    (lambda m, x: m.fc(x)[:, 0], "(1,)"),
    (lambda m, x: m.fc(x)[:, None], "(1, 1, 2)"),
    (lambda m, x: m.fc(x).sum(), "()"),
    (lambda m, x: m.fc(x).T, "(2, 1)"),
    (lambda m, x: m.fc(x).repeat(3, 1), "(3, 2)"),
    (lambda m, x: (m.fc(x), None), "tuple"),
]


@every_method
@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize(("forward", "got"), OUTPUTS, ids=[got for _, got in OUTPUTS])
def test_outputs_of_another_shape_are_refused(forward, got, batch_size, method):
    sentence = f"the model must return outputs (B, Y), got {got} for a batch of one"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        method(Apply(forward, fc=nn.Linear(3, 2)), torch.randn(batch_size, 3))


@every_method
def test_what_mixes_samples_or_draws_is_refused(method):
    data = torch.randn(3, 3)
    untracked = nn.BatchNorm1d(2, track_running_stats=False).eval()
    for norm in (nn.BatchNorm1d(2), untracked):
        with pytest.raises(ValueError, match=r"^1 is BatchNorm in training mode: "):
            method(nn.Sequential(nn.Linear(3, 2), norm), data)
    with pytest.raises(ValueError, match=f"^{re.escape(RANDOMNESS)}$"):
        method(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), data)


@every_method
def test_a_wrong_batch_is_refused(method):
    with pytest.raises(TypeError, match=r"^data must be a tensor \(B, \.\.\.\), got list$"):
        method(nn.Linear(3, 2), [[0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=r"^data must have a batch dimension"):
        method(nn.Linear(3, 2), torch.tensor(0.0))


@pytest.mark.parametrize("chunk_size", [0, -1, "2", True])
def test_a_chunk_that_holds_no_sample_is_refused(chunk_size):
    with pytest.raises(ValueError, match=r"^chunk_size must be None or a whole number"):
        func_jacobians(nn.Linear(3, 2), torch.zeros(3, 3), chunk_size=chunk_size)
