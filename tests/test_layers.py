"""What is known of layers: whatever function uses a weight, gradients, norms and sums are right."""

import functools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import benchmark, gradients, jacobians, norms
from helpers.models import MLP, SimpleCNN
from tests.support.architectures import case_of
from tests.support.oracle import TOLERANCE, TOLERANCES, Truth, assert_equal, oracle
from tests.support.ways import WAYS
from tests.support.zoo import Apply, Case, squared

pytestmark = pytest.mark.filterwarnings("ignore:.*which torch.vmap takes one sample")


class Weighted(nn.Module):
    """A function of a weight and an input, between two layers."""

    def __init__(
        self, shape: tuple[int, ...], function: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(shape))
        self.bias = nn.Parameter(torch.randn(2))
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(self, self.before(inputs)).tanh()


def product(shape: tuple[int, ...], function: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    return lambda: Weighted(shape, function)


def einsum(equation: str, *shape: int) -> Callable[[], nn.Module]:
    return product(shape, lambda m, x: torch.einsum(equation, x, m.weight))


class Square(torch.autograd.Function):
    """A product with a weight that no function of torch takes by name."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor) -> Tensor:
        return inputs * weight.square()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grads):
        inputs, weight = ctx.saved_tensors
        return grads * weight.square(), (2 * grads * inputs * weight).sum((0, 1))


def _force(self: Apply, inputs: Tensor) -> Tensor:
    return torch.func.grad(lambda x: self.b(self.a(x).tanh()).sum())(inputs)


def pair(forward: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    return lambda: Apply(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4))


# Take (B, 3, 4). First what a kind of layer describes.
USES: dict[str, Callable[[], nn.Module]] = {
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
    # What no kind describes.
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
    "convolution of text padding": lambda: nn.Conv1d(3, 2, 3, padding="same"),
    "functional": pair(lambda m, x: F.linear(m.a(x), m.a.weight.T.tanh()) + m.a.weight.norm()),
    "custom function": product((4,), lambda m, x: Square.apply(x, m.weight)),
    "func.grad inside": pair(_force),
    "constant input": pair(lambda m, x: m.b(x + m.a.weight.sum() + m.a(torch.ones_like(x)))),
    "output changed in place": lambda: nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)
    ),
    "weight as input": pair(lambda m, x: x @ F.linear(m.a.weight, m.b.weight)),
    "rows mixed": pair(lambda m, x: m.b(m.a(x) - m.a(x).mean(1, keepdim=True) + x)),
    "vmap inside": pair(lambda m, x: torch.vmap(m.a)(x)),
    "several rows": pair(lambda m, x: m.b(m.a(x.expand(4, 3, 4)).tanh()).sum(0)[None]),
    "half in no_grad": pair(lambda m, x: m.a(x) + torch.no_grad()(m.a)(2 * x)),
    "detached": pair(lambda m, x: m.b(m.a(x).detach())),
    "data": pair(lambda m, x: F.linear(x, m.a.weight.data) + m.b(x)),
    "writes a row of its data": pair(lambda m, x: m.a.weight.data[0].zero_() + m.a(x)),
    "writes a row of itself": pair(lambda m, x: torch.no_grad()(m.a.weight[0].zero_)() + m.a(x)),
    "one layer twice": lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2),
}
WATCHED = ["func, out", "func, out, chunks", "norms", "norms, chunks", "clipped sum"]


def check(make: Callable[[], Case], tolerance: float = TOLERANCE) -> None:
    truth = Truth(make)
    for name in WATCHED:
        got = WAYS[name].compute(make(), truth)
        assert_equal(got, WAYS[name].expected(truth), tolerance)


def seeded(build: Callable[[], nn.Module], *shape: int) -> Callable[[], Case]:
    def make() -> Case:
        torch.manual_seed(0)
        return case_of(build(), shape, 3, torch.float64)

    return make


@pytest.mark.parametrize("name", USES)
def test_any_use_of_a_weight(name):
    check(seeded(USES[name], 3, 4))


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

    def __init__(self, linear: Callable[[int, int], nn.Module], width: int) -> None:
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

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Conv2d(2, width, 2, 2)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 5, width))
        self.block, self.head = Block(nn.Linear, width), nn.Linear(width, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        patches = self.embed(inputs).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(inputs), -1, -1), patches], 1) + self.positions
        return self.head(self.block(x)[:, 0])


class SmallGPT(nn.Module):
    """Tokens and positions, one block, the table of tokens again."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(7, width), nn.Embedding(5, width)
        self.block, self.norm = Block(Projection, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, inputs: Tensor) -> Tensor:
        places = torch.arange(inputs.shape[1], device=inputs.device)
        return self.head(self.norm(self.block(self.tokens(inputs) + self.positions(places))))


def small_resnet(norm: Callable[[int], nn.Module], width: int = 4, inplace: bool = False) -> Apply:
    def run(self: Apply, inputs: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(inputs)), inplace=inplace)
        x = F.relu(self.norm2(self.conv2(x)) + self.down(inputs), inplace=inplace)
        return x.mean((2, 3))

    return Apply(
        run,
        conv1=nn.Conv2d(2, width, 3, 2, 1, bias=False),
        norm1=norm(width),
        conv2=nn.Conv2d(width, width, 3, 1, 1, bias=False),
        norm2=norm(width),
        down=nn.Conv2d(2, width, 1, 2, bias=False),
    )


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


def batch_norm(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    return norm.eval()


def gpt_case(width: int, batch_size: int) -> Case:
    torch.manual_seed(0)
    data, targets = torch.randint(7, (batch_size, 5)), torch.randn(batch_size, 5, 7)
    return Case(SmallGPT(width).double(), data, targets.double(), squared)


# By the width: a case in float64 of a small and of a larger network of each kind.
NETWORKS: dict[str, Callable[[int, int], Case]] = {
    "gpt": gpt_case,
    **{
        name: lambda width, size, build=build: case_of(build(width), (2, 4, 4), size, torch.float64)
        for name, build in {
            "vit": SmallViT,
            "resnet": lambda width: small_resnet(group_norm, width),
            "resnet, batch norm": lambda width: small_resnet(batch_norm, width),
            "resnet, batch norm, in place": lambda width: small_resnet(batch_norm, width, True),
        }.items()
    },
}


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks(name):
    def make() -> Case:
        torch.manual_seed(0)
        return NETWORKS[name](6, 3)

    check(make)


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks_never_form_the_gradients(name, recwarn):
    """One forward and backward of all samples, as seen in its memory."""
    case = NETWORKS[name](64, 32)
    formed = 32 * sum(p.nbytes for p in case.model.parameters())
    assert benchmark.memory(lambda: norms.gradient_norms(*case.args)).peak < formed / 2
    assert benchmark.memory(lambda: norms.clipped_sum(*case.args, 1.0)).peak < formed / 2
    assert not recwarn


WIDE: dict[str, tuple[tuple[int, ...], Callable[[nn.Module, Tensor], Tensor]]] = {
    "linear": ((64, 64), lambda m, x: F.linear(x, m.weight)),
    "addmm": ((64, 64), lambda m, x: torch.addmm(m.bias, x[0], m.weight)[None]),
    "matmul": ((64, 64), lambda m, x: x @ m.weight),
    "matmul of a vector": ((64, 64), lambda m, x: (x[0, 0] @ m.weight)[None]),
    "matmul from the left": ((64, 64), lambda m, x: m.weight @ x.mT),
    "mm": ((64, 64), lambda m, x: torch.mm(x[0], m.weight)[None]),
    "einsum": ((64, 64), lambda m, x: torch.einsum("btd,de->bte", x, m.weight)),
    "einsum to heads": ((64, 4, 16), lambda m, x: torch.einsum("btd,dhk->bhtk", x, m.weight)),
    "einsum over both": ((3, 64, 64), lambda m, x: torch.einsum("btd,tkd->bk", x, m.weight)),
    "convolution": ((64, 64, 1), lambda m, x: F.conv1d(x.mT, m.weight)),
    "embedding": ((64, 64), lambda m, x: F.embedding(x.argmax(-1), m.weight)),
}


@pytest.mark.parametrize("name", WIDE)
def test_what_is_known_of_a_layer_never_forms_its_gradient(name):
    shape, function = WIDE[name]
    parameters = {"weight": torch.randn(shape), "bias": torch.randn(64)}
    model = Apply(function, **{n: nn.Parameter(each) for n, each in parameters.items()})
    case = case_of(model, (3, 64), 32, torch.float64)
    formed = 32 * model.weight.nbytes
    assert benchmark.memory(lambda: norms.gradient_norms(*case.args)).peak < formed / 2


KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@pytest.mark.parametrize("dims", KINDS)
@pytest.mark.parametrize("images", [False, True])
def test_convolutions_by_both_ways(dims, images):
    for channels, size in ((2, 6), (24, 4)):  # the gradient itself; the Gram matrices

        def build(channels: int = channels) -> nn.Module:
            layer = KINDS[dims](channels, 2 * channels, 2, 2, 1, 2, 2)
            if images:  # without the dimension of images
                return Apply(lambda m, x: m.layer(x[0])[None].tanh().flatten(1), layer=layer)
            return nn.Sequential(layer, nn.Tanh(), nn.Flatten())

        check(seeded(build, channels, *(size,) * dims))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("dims", KINDS)
def test_convolutions_of_large_images_place_by_place(dims, dilation, groups):
    """Many channels in, few out, and so many positions that a place of the kernel pays."""
    size = {1: (400,), 2: (20, 19), 3: (9, 8, 7)}[dims]
    kernel, padding = (3, 2, 1)[:dims], (1, 0, 2)[:dims]

    def build() -> nn.Module:
        layer = KINDS[dims](16, 4, kernel, 1, padding, dilation, groups)
        return nn.Sequential(layer, nn.Tanh(), nn.Flatten())

    check(seeded(build, 16, *size))


def test_large_matrices_of_one_outer_product():
    check(seeded(lambda: nn.Sequential(*[nn.Linear(600, 600), nn.Tanh()] * 2), 600))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_what_cancels_is_not_taken_from_gram_matrices(dtype):
    torch.manual_seed(0)
    model = nn.Linear(40, 40, bias=False).to(dtype)
    tokens = torch.randn(3, 1, 40, dtype=dtype)
    data = torch.cat([tokens, -tokens * (1 - 1e-3)], dim=1)
    args = model, lambda p, t: (p * t).sum(), data, torch.ones_like(data)
    expected = oracle(*args)["weight"].flatten(1).norm(dim=1)
    assert_equal({"": norms.gradient_norms(*args)}, {"": expected}, TOLERANCES[dtype])


@pytest.mark.parametrize("size", [1, 257, 1_000_001])
def test_squares_of_many_numbers_are_added_up_without_loss(size):
    """In float32, of a bias: its gradient is the loss's."""
    torch.manual_seed(0)
    model = Apply(lambda m, x: x + m.bias, bias=nn.Parameter(torch.zeros(size)))
    numbers = torch.randn(2, size)
    got = norms.gradient_norms(model, lambda p, t: (p * t).sum(), torch.zeros(2, 1), numbers)
    torch.testing.assert_close(got.double(), numbers.double().norm(dim=1), rtol=5e-7, atol=0)


def test_sums_in_half_precision_are_those_of_all_samples():
    """The gradient of each sample is 1, and in bfloat16 512 + 2 is 512."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    data = torch.ones(1024, 1, dtype=torch.bfloat16)
    total = norms.clipped_sum(model, lambda z, t: z.sum(), data, data, 2.0, chunk_size=2)
    assert total["weight"].dtype == torch.bfloat16
    assert total["weight"].item() == 1024


def test_complex_weights():
    torch.manual_seed(0)

    def run(self: Apply, inputs: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.a(inputs)) * self.scale
        return torch.fft.irfft(spectrum @ self.mix, n=4)

    scale, mix = (nn.Parameter(torch.randn(*s, dtype=torch.complex128)) for s in ((3,), (3, 3)))
    model = Apply(run, a=nn.Linear(4, 4), scale=scale, mix=mix)
    model.a.double()
    one = Case(model, torch.randn(3, 4).double(), torch.randn(3, 4).double(), squared)
    rows = gradients.loop_gradients(*one.args)
    assert all(rows[name].is_complex() for name in ("scale", "mix"))
    out = {name: torch.empty_like(each) for name, each in rows.items()}
    torch.testing.assert_close(gradients.func_gradients(*one.args, out=out), rows)
    norm = torch.cat([each.flatten(1).abs() for each in rows.values()], 1).norm(dim=1)
    torch.testing.assert_close(norms.gradient_norms(*one.args), norm)
    limit = norm.median().item()
    total = norms.clipped_sum(*one.args, limit)
    for name, each in rows.items():
        factors = (limit / norm).clamp(max=1).to(each.dtype)
        torch.testing.assert_close(total[name], torch.einsum("b,b...->...", factors, each))


def test_autocast_in_the_forward():
    torch.manual_seed(0)

    def run(self: Apply, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.b(self.a(inputs).tanh()).float()

    model = Apply(run, a=nn.Linear(4, 4), b=nn.Linear(4, 2))
    one = Case(model, torch.randn(3, 4), torch.randn(3, 2), squared)
    rows = gradients.func_gradients(*one.args)
    norm = torch.cat([each.flatten(1) for each in rows.values()], 1).norm(dim=1)
    # bfloat16 keeps 8 bits: one rounding is 4e-3
    torch.testing.assert_close(norms.gradient_norms(*one.args), norm, rtol=2e-2, atol=0)
    assert all(t.dtype == torch.float32 for t in norms.clipped_sum(*one.args, 1.0).values())


def test_memory_of_sums_does_not_grow_with_the_batch():
    model = SimpleCNN()
    for function in (norms.gradient_norms, functools.partial(norms.clipped_sum, limit=1.0)):
        peaks = []
        for size in (16, 64):
            data, targets = torch.randn(size, 1, 28, 28), torch.randint(10, (size,))
            call = functools.partial(function, model, F.cross_entropy, data, targets, chunk_size=16)
            peaks.append(benchmark.memory(call).peak)
        gradients_of_a_chunk = 16 * 4 * sum(p.numel() for p in model.parameters())
        assert peaks[1] < 1.05 * peaks[0] < gradients_of_a_chunk


def test_no_second_copy_of_what_is_written():
    model, data, labels = SimpleCNN(), torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    out = {name: torch.empty(64, *p.shape) for name, p in model.named_parameters()}
    size = sum(tensor.nbytes for tensor in out.values())
    call = functools.partial(gradients.func_gradients, model, F.cross_entropy, data, labels)
    assert benchmark.memory(functools.partial(call, out=out)).peak < 0.2 * size
    assert benchmark.memory(call).peak > size  # as it would be seen


def test_neither_chunks_nor_columns_are_joined_in_a_second_copy():
    model = MLP()
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    size = 64 * 15910 * 4
    args = model, F.cross_entropy, images, labels
    for count, call in (
        (size, lambda: gradients.func_gradients(*args, chunk_size=4)),
        (10 * size, lambda: jacobians.func_jacobians(model, images, chunk_size=4)),
    ):
        call()
        assert count <= benchmark.memory(call).peak < 1.4 * count
