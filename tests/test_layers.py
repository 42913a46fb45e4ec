"""What is known of layers: whatever function uses a weight, gradients, norms and sums are right."""

import functools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import benchmark, gradients, norms
from helpers.layers import linear
from helpers.layers.watch import NotSeen, Watch
from helpers.models import SimpleCNN
from tests.support import wild
from tests.support.oracle import assert_equal, oracle
from tests.support.zoo import MODELS, Apply, Case, make, squared
from tests.test_gradients_properties import case_of
from tests.test_gradients_wild import expected

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*which torch.vmap takes one sample"),
    pytest.mark.filterwarnings("ignore:LSTM with projections"),
    pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning"),
]


class Weighted(nn.Module):
    """A function of a weight and an input, between two layers."""

    def __init__(
        self, shape: tuple[int, ...], function: Callable[[Tensor, Tensor], Tensor], bias: int = 2
    ) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(shape))
        self.bias = nn.Parameter(torch.randn(bias))
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(self, self.before(inputs)).tanh()


def product(shape: tuple[int, ...], function: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    return lambda: Weighted(shape, function)


def einsum(equation: str, *shape: int) -> Callable[[], nn.Module]:
    return product(shape, lambda m, x: torch.einsum(equation, x, m.weight))


# Takes (B, 3, 4). What a kind describes, and so is never computed for a batch of weights.
DESCRIBED: dict[str, Callable[[], nn.Module]] = {
    "linear": product((2, 4), lambda m, x: F.linear(x, m.weight, m.bias)),
    "addmm": product((4, 2), lambda m, x: torch.addmm(m.bias, x[0], m.weight)[None]),
    "addmm method": product((4, 2), lambda m, x: m.bias.addmm(x[0], m.weight)[None]),
    "matmul": product((4, 2), lambda m, x: x @ m.weight + m.bias),
    "matmul of a vector": product((4, 2), lambda m, x: (x[0, 0] @ m.weight + m.bias)[None]),
    "matmul from the left": product((2, 4), lambda m, x: m.weight @ x.mT),
    "matmul with a vector": product((2, 4), lambda m, x: (m.weight @ x[0, 0] + m.bias)[None]),
    "mm": product((4, 2), lambda m, x: torch.mm(x[0], m.weight)[None]),
    "einsum": einsum("btd,de->bte", 4, 2),
    "einsum in another order": einsum("btd,ed->tbe", 2, 4),
    "einsum to heads": einsum("btd,dhk->bhtk", 4, 3, 2),
    "einsum over time": einsum("btd,kt->bkd", 2, 3),
    "einsum over both": einsum("btd,tkd->bk", 3, 2, 4),
    "einsum from the left": product(
        (2, 4), lambda m, x: torch.einsum("ed, btd -> bte", m.weight, x)
    ),
    "einsum of a list": product((4, 2), lambda m, x: torch.einsum("btd,de->bte", [x, m.weight])),
    "one index": lambda: Apply(
        lambda m, x: m.table((x[0, 0, 0] > 0).long())[None], table=nn.Embedding(2, 3)
    ),
}
# What enters as a leaf for each sample.
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "addmm with factors": product(
        (4, 2), lambda m, x: torch.addmm(m.bias, x[0], m.weight, beta=2, alpha=3)[None]
    ),
    "addmm of a matrix": product(
        (4, 3), lambda m, x: torch.addmm(m.weight, x[0].T, x[0, :, :3])[None]
    ),
    "einsum of a batch": einsum("btd,tde->bte", 3, 4, 2),
    "einsum that sums": einsum("btd,de->be", 4, 2),
    "einsum of a diagonal": einsum("btd,dd->btd", 4, 4),
    "einsum outer": einsum("btd,e->btde", 2),
    "einsum inner": einsum("btd,td->b", 3, 4),
    "einsum without an arrow": einsum("btd,de", 4, 2),
    "einsum with dots": einsum("...d,de->...e", 4, 2),
    "einsum of the weight with itself": product(
        (4, 4), lambda m, x: x @ torch.einsum("ab,cb->ac", m.weight, m.weight)
    ),
    "weight times weight": product((4, 4), lambda m, x: x @ (m.weight @ m.weight)),
    "matmul of a stack": product((3, 4, 2), lambda m, x: x.transpose(0, 1) @ m.weight),
    "sum": product((3, 1), lambda m, x: x + m.weight),
    "product": product((4,), lambda m, x: x * m.weight),
    "into": product((1, 4), lambda m, x: x.add_(m.weight)),
    "token": product((1, 1, 4), lambda m, x: torch.cat([m.weight.expand(len(x), -1, -1), x], 1)),
    "rms norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4)),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((3, 4))),
    "by hand": product(
        (4,), lambda m, x: m.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))
    ),
    "convolution of text padding": lambda: nn.Conv1d(3, 2, 3, padding="same"),
}


class Projection(nn.Module):
    """A linear layer as GPT-2 writes it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / math.sqrt(inputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, inputs.view(-1, inputs.shape[-1]), self.weight)
        return rows.view(*inputs.shape[:-1], -1)


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, linear: Callable[[int, int], nn.Module], width: int = 6) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = linear(width, 3 * width), linear(width, width)
        self.expand, self.contract = linear(width, 2 * width), linear(2 * width, width)
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, inputs: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(inputs)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT).softmax(-1)
        x = inputs + self.scale * self.project((weights @ v).transpose(1, 2).flatten(2))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class SmallViT(nn.Module):
    """Patches, a class token, positions, one block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(2, 6, 2, 2)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.positions = nn.Parameter(torch.randn(1, 5, 6))
        self.block, self.head = Block(nn.Linear), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        patches = self.embed(inputs).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(inputs), -1, -1), patches], 1) + self.positions
        return self.head(self.block(x)[:, 0])


class SmallGPT(nn.Module):
    """Tokens and positions, one block, the table of tokens again."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(7, 6), nn.Embedding(5, 6)
        self.block, self.norm = Block(Projection), nn.LayerNorm(6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, inputs: Tensor) -> Tensor:
        places = torch.arange(inputs.shape[1], device=inputs.device)
        return self.head(self.norm(self.block(self.tokens(inputs) + self.positions(places))))


def _residual() -> nn.Module:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(inputs)))
        x = F.relu(self.norm2(self.conv2(x)) + self.down(inputs))
        return x.mean((2, 3))

    return Apply(
        run,
        conv1=nn.Conv2d(2, 4, 3, 2, 1, bias=False),
        norm1=nn.GroupNorm(2, 4),
        conv2=nn.Conv2d(4, 4, 3, 1, 1, bias=False),
        norm2=nn.GroupNorm(2, 4),
        down=nn.Conv2d(2, 4, 1, 2, bias=False),
    )


def case(name: str) -> Case:
    """Build a case in float64 from its own seed."""
    torch.manual_seed(0)
    if name in DESCRIBED | OTHERS:
        return case_of((DESCRIBED | OTHERS)[name](), (3, 4), 3, torch.float64)
    if name == "gpt":
        data = torch.randint(7, (3, 5))
        return Case(SmallGPT().double(), data, torch.randn(3, 5, 7).double(), squared)
    return case_of({"vit": SmallViT, "resnet": _residual}[name](), (2, 4, 4), 3, torch.float64)


NAMES = [*DESCRIBED, *OTHERS, "vit", "gpt", "resnet"]


def written(case: Case, **options: object) -> dict[str, Tensor]:
    """Write gradients into tensors that hold something else."""
    params = dict(case.model.named_parameters())
    names = options.get("wrt") or [name for name in params if params[name].requires_grad]
    out = {
        name: params[name].new_full((len(case.data), *params[name].shape), math.nan).detach()
        for name in names
    }
    got = gradients.func_gradients(*case.args, out=out, **options)
    assert all(got[name] is out[name] for name in names)
    return got


def check(case: Case, **options: object) -> None:
    """Compare gradients that are written, norms and clipped sums with the oracle."""
    grads = oracle(*case.args)
    assert_equal(written(case, **options), grads, 1e-12)
    norm = torch.cat([g.flatten(1) for g in grads.values()], 1).norm(dim=1)
    assert_equal({"n": norms.gradient_norms(*case.args, **options)}, {"n": norm}, 1e-12)
    limit = norm.median().item()
    factors = (limit / norm).clamp(max=1)
    total = {n: torch.einsum("b,b...->...", factors, g) for n, g in grads.items()}
    assert_equal(norms.clipped_sum(*case.args, limit, **options), total, 1e-12)


@pytest.mark.parametrize("chunk_size", [None, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_any_use_of_a_weight(name, chunk_size, monkeypatch):
    monkeypatch.setattr(gradients.derivatives, "by_vmap", None)  # one pass does
    check(case(name), chunk_size=chunk_size)


def found(case: Case):
    params = {name: p.detach() for name, p in case.model.named_parameters()}
    return Watch(gradients.sample_loss(case.loss_fn), case.model, params)(case.batch)


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_is_described_is_not_computed_for_a_batch_of_weights(name):
    seen = found(case(name))
    assert "weight" not in seen.rest
    assert "table.weight" not in seen.rest
    assert seen.uses.keys() >= {"weight"} or seen.uses.keys() == {"table.weight"}


@torch.no_grad()
def _halve(weight: Tensor) -> None:
    weight.mul_(0.5)


@torch.no_grad()
def _fill(weight: Tensor) -> None:
    weight[0].zero_()


WRITES = {
    "data": lambda weight: weight.data.clamp_(-0.1, 0.1),
    "data of a row": lambda weight: weight.data[0].zero_(),
    "in place": _halve,
    "a row in place": _fill,
}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", WRITES)
def test_a_forward_that_writes_into_a_weight_is_not_watched(name, size):
    def run(self: Apply, inputs: Tensor) -> Tensor:
        WRITES[name](self.a.weight)
        return self.a(inputs)

    model = Apply(run, a=nn.Linear(3, 2))
    before = model.a.weight.detach().clone()
    with pytest.raises(NotSeen):
        found(Case(model, torch.randn(size, 3), torch.randn(size, 2), squared))
    assert torch.equal(model.a.weight, before)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_described_comes_by_its_leaf(name):
    seen = found(case(name))
    assert {"weight", "1.weight"} & seen.rest.keys()


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_written_for_every_model_of_the_zoo(name, chunk_size):
    case = make(name)
    assert_equal(written(case, chunk_size=chunk_size), oracle(*case.args), 1e-12)


@pytest.mark.parametrize("name", [*NAMES, *MODELS])
def test_what_an_earlier_call_returned_can_be_written_into(name):
    one = case(name) if name in NAMES else make(name)
    out = gradients.func_gradients(*one.args)
    for tensor in out.values():
        tensor.fill_(math.nan)
    assert_equal(gradients.func_gradients(*one.args, out=out), oracle(*one.args), 1e-12)


@pytest.mark.parametrize("name", wild.MODELS)
@pytest.mark.filterwarnings("ignore::helpers.transforms.fallback.FallbackWarning")
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_every_habit_of_real_models(name):
    grads = expected(name)
    assert_equal(written(wild.make(name), chunk_size=2), grads, 1e-12)
    norm = torch.cat([g.flatten(1) for g in grads.values()], 1).norm(dim=1)
    got = norms.gradient_norms(*wild.make(name).args, chunk_size=2)
    assert_equal({"n": got}, {"n": norm}, 1e-12)
    limit = norm.median().item()
    factors = (limit / norm).clamp(max=1)
    total = {n: torch.einsum("b,b...->...", factors, g) for n, g in grads.items()}
    assert_equal(norms.clipped_sum(*wild.make(name).args, limit, chunk_size=2), total, 1e-12)


@pytest.mark.parametrize("name", ["linear", "matmul", "einsum to heads", "resnet"])
def test_gradients_are_written_into_memory_of_any_order(name):
    one = case(name)
    out = {
        name: torch.full((*p.shape[::-1], 3), math.nan, dtype=p.dtype).permute(
            *range(p.dim(), -1, -1)
        )
        for name, p in one.model.named_parameters()
    }
    assert_equal(gradients.func_gradients(*one.args, out=out), oracle(*one.args), 1e-12)


def test_large_matrices_of_one_outer_product(monkeypatch):
    monkeypatch.setattr(linear, "_LARGE", 1)
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)  # used twice, so that one is added to the other
    check(case_of(nn.Sequential(layer, nn.Tanh(), layer), (3,), 4, torch.float64))


@pytest.mark.parametrize("randomness", ["different", "same"])
@pytest.mark.parametrize("layer", [nn.Identity, functools.partial(nn.LSTM, 4, 4)])
def test_what_is_written_draws_what_func_gradients_draws(randomness, layer):
    last = layer()
    model = Apply(
        lambda m, x: m.b(m.last(m.drop(m.a(x)))[0]),
        **{"a": nn.Linear(3, 4), "drop": nn.Dropout(0.5), "last": last, "b": nn.Linear(4, 2)},
    )
    if not isinstance(last, nn.LSTM):
        model.run = lambda m, x: m.b(m.drop(m.a(x)))
    one = Case(model.double(), torch.randn(5, 3).double(), torch.randn(5, 2).double(), squared)
    options = {"chunk_size": 2, "randomness": randomness}
    torch.manual_seed(1)
    expected = gradients.func_gradients(*one.args, **options)
    torch.manual_seed(1)
    assert_equal(written(one, **options), expected, 1e-12)


def test_complex_weights():
    torch.manual_seed(0)

    def run(self: Apply, inputs: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.a(inputs)) * self.scale
        return torch.fft.irfft(spectrum @ self.mix, n=4)

    scale, mix = (nn.Parameter(torch.randn(*s, dtype=torch.complex128)) for s in ((3,), (3, 3)))
    model = Apply(run, a=nn.Linear(4, 4), scale=scale, mix=mix)
    model.a.double()
    one = Case(model, torch.randn(3, 4).double(), torch.randn(3, 4).double(), squared)
    grads = {
        name: g.to(dict(model.named_parameters())[name].dtype)
        for name, g in gradients.loop_gradients(*one.args).items()
    }
    assert all(g.is_complex() for name, g in grads.items() if name in ("scale", "mix"))
    for name, gradient in written(one).items():
        torch.testing.assert_close(gradient, grads[name])
    norm = torch.cat([g.flatten(1).abs() for g in grads.values()], 1).norm(dim=1)
    torch.testing.assert_close(norms.gradient_norms(*one.args), norm)
    limit = norm.median().item()
    total = norms.clipped_sum(*one.args, limit)
    for name, gradient in grads.items():
        factors = (limit / norm).clamp(max=1).to(gradient.dtype)
        torch.testing.assert_close(total[name], torch.einsum("b,b...->...", factors, gradient))


def test_autocast_in_the_forward():
    torch.manual_seed(0)

    def run(self: Apply, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.b(self.a(inputs).tanh()).float()

    model = Apply(run, a=nn.Linear(4, 4), b=nn.Linear(4, 2))
    one = Case(model, torch.randn(3, 4), torch.randn(3, 2), squared)
    expected = gradients.func_gradients(*one.args)
    norm = torch.cat([g.flatten(1) for g in expected.values()], 1).norm(dim=1)
    # bfloat16 keeps 8 bits: one rounding is 4e-3
    torch.testing.assert_close(norms.gradient_norms(*one.args), norm, rtol=2e-2, atol=0)
    assert all(t.dtype == torch.float32 for t in norms.clipped_sum(*one.args, 1.0).values())


def test_no_second_copy_of_what_is_written():
    torch.manual_seed(0)
    model, data, labels = SimpleCNN(), torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    out = {name: torch.empty(64, *p.shape) for name, p in model.named_parameters()}
    size = sum(tensor.nbytes for tensor in out.values())
    call = functools.partial(gradients.func_gradients, model, F.cross_entropy, data, labels)
    assert benchmark.memory(functools.partial(call, out=out)).peak < 0.2 * size
    assert benchmark.memory(call).peak > size  # as it would be seen
