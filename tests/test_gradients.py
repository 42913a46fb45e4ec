"""Per-sample gradients of a zoo of models, by every method, against oracles of their own."""

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

from tests.support.oracle import METHODS, TOLERANCES, assert_equal, oracle
from tests.support.zoo import MODELS, Apply, make, squared

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*which torch.vmap takes one sample"),  # vmap's, of LSTM
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning"),  # the old hook's
]
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
every_model = pytest.mark.parametrize("name", MODELS)


@functools.cache
def expected(name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    return oracle(*make(name).to(dtype).args)


@every_method
@every_model
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equals_the_oracle(name, dtype, method):
    case = make(name).to(dtype)
    got = method(*case.args)
    assert_equal(got, expected(name, dtype), TOLERANCES[dtype])
    for tensor in got.values():
        assert tensor.dtype == dtype
        assert tensor.is_leaf
        assert not tensor.requires_grad


@every_method
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_sparse_gradient_comes_dense(kind, method):
    """A layer for large vocabularies; its gradient is one of few rows, some of them twice."""
    case = make("embedding bag" if kind is nn.EmbeddingBag else "embedding padding")
    weight = case.model.weight.detach().clone()
    case.model = kind(6, 3, _weight=weight)
    case.targets = torch.randn_like(case.model(case.data))
    case.data[0, 1] = case.data[0, 0]
    dense = oracle(*case.args)
    case.model = kind(6, 3, _weight=weight, sparse=True)
    got = method(*case.args)
    assert_equal(got, dense, TOLERANCES[torch.float64])
    assert got["weight"].layout is torch.strided


def test_the_oracle_is_not_blind():
    gradients = expected("lstm", torch.float64)
    wrong = {name: tensor.clone() for name, tensor in gradients.items()}
    wrong["layer.bias_ih_l0"][1, 2] += 1e-9
    with pytest.raises(AssertionError, match=r"layer\.bias_ih_l0"):
        assert_equal(wrong, gradients, TOLERANCES[torch.float64])


@every_method
@pytest.mark.parametrize("batch_size", [0, 1])
@pytest.mark.parametrize("name", ["linear", "scalars", "frozen", "buffer in place", "gru", "mlp"])
def test_small_batches(name, batch_size, method):
    case = make(name, batch_size)
    got = method(*case.args)
    shapes = {n: (batch_size, *p.shape) for n, p in case.model.named_parameters()}
    assert {n: tuple(t.shape) for n, t in got.items()} == {n: shapes[n] for n in got}
    assert_equal(got, oracle(*case.args), TOLERANCES[torch.float64])


@every_method
def test_a_linear_layer_by_hand(method):
    case = make("linear")
    residuals = case.data @ case.model.weight.T + case.model.bias - case.targets
    by_hand = {"weight": torch.einsum("bo,bi->boi", residuals, case.data), "bias": residuals}
    by_hand = {name: tensor.detach() for name, tensor in by_hand.items()}
    assert_equal(method(*case.args), by_hand, TOLERANCES[torch.float64])


@every_method
@pytest.mark.parametrize("name", ["mlp", "lstm both ways", "encoder eval", "grouped", "group norm"])
def test_finite_differences_in_a_random_direction(name, method):
    case, step = make(name), 1e-5
    generator = torch.Generator().manual_seed(0)
    direction = {
        n: torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for n, p in case.model.named_parameters()
    }

    def losses(sign: int) -> Tensor:
        moved = copy.deepcopy(case.model)
        with torch.no_grad():
            for n, parameter in moved.named_parameters():
                parameter += sign * step * direction[n]
            pairs = zip(case.data.split(1), case.targets.split(1), strict=True)
            return torch.stack([case.loss_fn(moved(sample), target) for sample, target in pairs])

    slopes = (losses(+1) - losses(-1)) / (2 * step)
    got = sum((tensor * direction[n]).flatten(1).sum(1) for n, tensor in method(*case.args).items())
    # Central differences err by step**2 and by rounding / step: both about 1e-10.
    torch.testing.assert_close(got, slopes, rtol=1e-6, atol=1e-7)


# A forward that changes a buffer computes something else for a batch than for its samples.
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("buffer")])
def test_the_mean_is_the_batch_gradient(name):
    case = make(name)
    got = METHODS["func"](*case.args)
    loss = case.loss_fn(case.model(case.data), case.targets)
    if case.loss_fn is squared:  # a sum over the batch
        loss = loss / len(case.data)
    if loss.requires_grad:
        loss.backward()
    parameters = dict(case.model.named_parameters())
    batch_gradients = {
        n: torch.zeros_like(parameters[n]) if parameters[n].grad is None else parameters[n].grad
        for n in got
    }
    means = {n: tensor.mean(0) for n, tensor in got.items()}
    assert_equal(means, batch_gradients, TOLERANCES[torch.float64])


def raw(tensor: Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()


def snapshot(model: nn.Module) -> dict[str, object]:
    """Record what a caller could see change, with the identity of every tensor."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    state: dict[str, object] = {"mode": [module.training for module in model.modules()]}
    state["attributes"] = [sorted(vars(module)) for module in model.modules()]
    state["hooks"] = [len(module._forward_pre_hooks) for module in model.modules()]
    for name, tensor in tensors.items():
        grad = None if tensor.grad is None else (id(tensor.grad), raw(tensor.grad))
        state[name] = (id(tensor), type(tensor), tensor.requires_grad, grad, raw(tensor))
    return state


@every_method
@every_model
def test_the_model_is_left_as_it_was(name, method):
    case = make(name)
    for parameter in list(case.model.parameters())[::2]:
        parameter.grad = torch.full_like(parameter, 7.0)
    before = snapshot(case.model)
    outputs = copy.deepcopy(case.model)(case.data)
    method(*case.args)
    assert snapshot(case.model) == before
    # And it still works: a dead tensor left in it would fail one of these.
    repr(case.model)
    for tensor in case.model.state_dict().values():
        repr(tensor)
    fresh = copy.deepcopy(case.model)
    torch.testing.assert_close(fresh(case.data), outputs, rtol=0, atol=0)
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    optimizer.zero_grad()
    loss = case.loss_fn(case.model(case.data), case.targets)
    if name != "no_grad inside":
        loss.backward()
        optimizer.step()
        assert not torch.equal(case.model(case.data), outputs)


@every_method
@pytest.mark.parametrize(
    "name", ["stash", "weight norm hook", "spectral norm hook", "buffer rebound", "shared layer"]
)
def test_a_model_that_has_run_before(name, method):
    case = make(name)
    with torch.no_grad():
        case.model(case.data)
    by_oracle = oracle(*case.args)
    other = make(name)
    other.model(case.data)  # with a graph, which a stash keeps
    assert_equal(method(*other.args), by_oracle, TOLERANCES[torch.float64])


def _keep_last(self: Apply, inputs: Tensor) -> Tensor:
    outputs = self.fc(inputs).tanh()
    if self.last is not None:
        outputs = outputs * self.last
    self.last = outputs
    return outputs


def _count(self: Apply, inputs: Tensor) -> Tensor:
    self.last = 1 if self.last is None else self.last + 1
    return self.fc(inputs) * self.last


def _cache(self: Apply, inputs: Tensor) -> Tensor:
    if self.last is None:
        self.last = torch.ones_like(inputs) * inputs
    return self.fc(inputs * self.last)


@every_method
@pytest.mark.parametrize("forward", [_keep_last, _count, _cache])
@pytest.mark.parametrize("batch_size", [3, 4])
def test_what_a_forward_keeps_on_self_reaches_no_other_sample(forward, batch_size, method):
    linear = make("linear", batch_size)
    model = Apply(forward, fc=linear.model, last=None)
    args = model, squared, linear.data, linear.targets
    assert_equal(method(*args), oracle(*args), TOLERANCES[torch.float64])
    assert model.last is None


@every_method
@pytest.mark.parametrize("kind", [list, dict])
def test_activations_kept_in_a_list_or_a_dictionary(kind, method):
    def forward(self: Apply, inputs: Tensor) -> Tensor:
        outputs = self.fc(inputs)
        self.kept.append(outputs) if kind is list else self.kept.update(outputs=outputs)
        return outputs

    linear = make("linear")
    model = Apply(forward, fc=linear.model, kept=kind())
    args = model, squared, linear.data, linear.targets
    by_oracle = oracle(*args)
    assert_equal(method(*args), by_oracle, TOLERANCES[torch.float64])
    assert not model.kept
    model(linear.data)
    assert_equal(method(*args), by_oracle, TOLERANCES[torch.float64])
    assert len(model.kept) == 1
