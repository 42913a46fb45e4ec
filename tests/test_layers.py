"""What is known of layers: whatever function uses a weight, gradients, norms and sums are right."""

import functools
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import benchmark, gradients, jacobians, norms
from helpers.layers.layer_call import Dense, LayerCall, MatchedCall
from helpers.layers.recorder import LAYER_RULES, RecordedGradients
from helpers.models import GPT, MLP
from helpers.transforms.fallback import FallbackWarning
from helpers.transforms.known_wrong import Refusal
from tests.of_torch.test_torch_faults import Tripled
from tests.support import contract
from tests.support.architectures import case_of
from tests.support.oracle import TOLERANCE, Truth, assert_equal, oracle
from tests.support.ways import WAYS, empty_out
from tests.support.wild import Product
from tests.support.zoo import Apply, Case, squared

close = torch.testing.assert_close
pytestmark = pytest.mark.filterwarnings("ignore")


def product(shape: tuple[int, ...], function: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    """Make what builds a function of inputs, a weight and a bias, behind a layer."""

    def build() -> nn.Module:
        weight, bias = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(2))

        def run(self: Apply, inputs: Tensor) -> Tensor:
            return function(self.before(inputs), self.weight, self.bias).tanh()

        return Apply(run, before=nn.Linear(4, 4), weight=weight, bias=bias)

    return build


def einsum(equation: str, *shape: int) -> Callable[[], nn.Module]:
    return product(shape, lambda x, w, b: torch.einsum(equation, x, w))


def _force(self: Apply, inputs: Tensor) -> Tensor:
    return torch.func.grad(lambda x: self.b(self.a(x).tanh()).sum())(inputs)


def pair(forward: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    return lambda: Apply(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4))


def attention(key: Tensor | None = None, **options: object) -> Callable[..., Tensor]:
    def run(model: Apply, inputs: Tensor) -> Tensor:
        query, value = (
            layer(inputs).unflatten(-1, (2, 2)).transpose(1, 2) for layer in (model.a, model.b)
        )  # (B, heads, T, channels)
        own_key = query if key is None else key
        return F.scaled_dot_product_attention(query, own_key, value, **options)

    return run


# Take (B, 3, 4). What a kind of layer describes:
DESCRIBED: dict[str, Callable[[], nn.Module]] = {
    "linear": product((2, 4), lambda x, w, b: F.linear(x, w, b)),
    "addmm": product((4, 2), lambda x, w, b: torch.addmm(b, x[0], w)[None]),
    "addmm method": product((4, 2), lambda x, w, b: b.addmm(x[0], w)[None]),
    "matmul": product((4, 2), lambda x, w, b: x @ w + b),
    "matmul of a vector": product((4, 2), lambda x, w, b: (x[0, 0] @ w + b)[None]),
    "matmul from the left": product((2, 4), lambda x, w, b: w @ x.mT),
    "matmul with a vector": product((2, 4), lambda x, w, b: (w @ x[0, 0] + b)[None]),
    "mm": product((4, 2), lambda x, w, b: torch.mm(x[0], w)[None]),
    "einsum": einsum("btd,de->bte", 4, 2),
    "einsum in another order": einsum("btd,ed->tbe", 2, 4),
    "einsum to heads": einsum("btd,dhk->bhtk", 4, 3, 2),
    "einsum over time": einsum("btd,kt->bkd", 2, 3),
    "einsum over both": einsum("btd,tkd->bk", 3, 2, 4),
    "einsum from the left": product((2, 4), lambda x, w, b: torch.einsum("ed, btd -> bte", w, x)),
    "einsum of a list": product((4, 2), lambda x, w, b: torch.einsum("btd,de->bte", [x, w])),
    "einsum outer": einsum("btd,e->btde", 2),
    "einsum inner": einsum("btd,td->b", 3, 4),
    "one index": lambda: Apply(
        lambda m, x: m.table((x[0, 0, 0] > 0).long())[None], table=nn.Embedding(2, 3)
    ),
    "a padded index": lambda: Apply(
        lambda m, x: m.table((x[0, :, 0] > 0).long())[None], table=nn.Embedding(3, 2, 0)
    ),
    "stride of numpy": lambda: Apply(
        lambda m, x: F.conv2d(x[..., None], m.fc.weight, m.fc.bias, np.int64(2)),
        fc=nn.Conv2d(3, 2, (2, 1)),
    ),
}
# What no kind describes:
USES = DESCRIBED | {
    "addmm with factors": product(
        (4, 2), lambda x, w, b: torch.addmm(b, x[0], w, beta=2, alpha=3)[None]
    ),
    "addmm of a matrix": product((4, 3), lambda x, w, b: torch.addmm(w, x[0].T, x[0, :, :3])[None]),
    "einsum of a batch": einsum("btd,tde->bte", 3, 4, 2),
    "einsum that sums": einsum("btd,de->be", 4, 2),
    "einsum of a diagonal": einsum("btd,dd->btd", 4, 4),
    "einsum without an arrow": einsum("btd,de", 4, 2),
    "einsum with dots": einsum("...d,de->...e", 4, 2),
    "einsum of the weight with itself": product(
        (4, 4), lambda x, w, b: x @ torch.einsum("ab,cb->ac", w, w)
    ),
    "weight times weight": product((4, 4), lambda x, w, b: x @ (w @ w)),
    "matmul of a stack": product((3, 4, 2), lambda x, w, b: x.transpose(0, 1) @ w),
    "product": product((4,), lambda x, w, b: x * w),
    "into": product((1, 4), lambda x, w, b: x.add_(w)),
    "convolution of text padding": lambda: nn.Conv1d(3, 2, 3, padding="same"),
    "functional": pair(lambda m, x: F.linear(m.a(x), m.a.weight.T.tanh()) + m.a.weight.norm()),
    "custom function": product((2, 4), lambda x, w, b: Product.apply(x[0], w)[None]),
    "func.grad inside": pair(_force),
    "one bias for two": pair(
        lambda m, x: m.a(x[:, 0]) + F.linear(x[:, 1], m.b.weight, m.a.bias).tanh()
    ),
    "constant input": pair(lambda m, x: m.b(x + m.a.weight.sum() + m.a(torch.ones_like(x)))),
    "output changed in place": lambda: nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)
    ),
    "weight as input": pair(lambda m, x: x @ F.linear(m.a.weight, m.b.weight)),
    "vmap inside": pair(lambda m, x: torch.vmap(m.a)(x)),
    "attention": pair(attention(is_causal=True)),
    "attention of a frozen table": pair(attention(key=torch.ones(1, 2, 3, 2).double())),
    "masked attention": pair(attention(attn_mask=torch.eye(3).bool())),
    "several rows": pair(lambda m, x: m.b(m.a(x.expand(4, 3, 4)).tanh()).sum(0)[None]),
    "half in no_grad": pair(lambda m, x: m.a(x) + torch.no_grad()(m.a)(2 * x)),
    "data": pair(lambda m, x: F.linear(x, m.a.weight.data) + m.b(x)),
    "writes a row of its data": pair(lambda m, x: m.a.weight.data[0].zero_() + m.a(x)),
    "writes a row of itself": pair(lambda m, x: torch.no_grad()(m.a.weight[0].zero_)() + m.a(x)),
}
SUMS = norms.gradient_norms, functools.partial(norms.clipped_sum, limit=1.0)
WATCHED = ["func, out", "func, out, chunks", "norms", "norms, chunks", "clipped sum"]


def seeded(build: Callable[[], nn.Module], *shape: int) -> Callable[[], Case]:
    def make() -> Case:
        torch.manual_seed(0)
        return case_of(build(), shape, 3, torch.float64)

    return make


def check(make: Callable[[], Case], tolerance: float = TOLERANCE) -> None:
    truth = Truth(make)
    for name in WATCHED:
        got = WAYS[name].compute(make(), truth)
        assert_equal(got, WAYS[name].expected(truth), tolerance)


@pytest.mark.parametrize("name", USES)
def test_any_use_of_a_weight(name):
    check(seeded(USES[name], 3, 4))


def calls_of(case: Case) -> list[LayerCall]:
    """Return what layers meet in a batch."""
    problem = RecordedGradients.of_loss(case.model, case.loss_fn, case.data, case.targets)
    ((_, found),) = problem.chunks()
    calls = []
    for of_one_parameter in found.calls.values():
        calls += of_one_parameter
    return calls


KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
OF_FORMULAS = {name: (build, (3, 4)) for name, build in DESCRIBED.items()}
OF_FORMULAS["convolution"] = lambda: nn.Conv2d(4, 6, 2, 2, 1, 2, 2), (4, 5, 5)
OF_FORMULAS["transposed convolution"] = lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2), (4, 5, 5)


@pytest.mark.parametrize("name", OF_FORMULAS)
def test_a_rule_computes_its_formula(name):
    """Whatever a rule overrides, and the defaults."""
    build, shape = OF_FORMULAS[name]
    calls = calls_of(seeded(build, *shape)())
    by_rules = [call for call in calls if type(call) is not Dense]
    assert len(by_rules) >= (1 if "index" in name else 2)
    factors = torch.linspace(-1, 2, 3).double()
    for call in calls:
        parts = [torch.einsum(call.formula, *operands) for operands in call.operands()]
        rows = torch.cat(parts).reshape(3, *call.shape)
        total = torch.tensordot(factors, rows, 1)

        def is_equal(found: Tensor, expected: Tensor) -> None:
            assert_equal({"": found}, {"": expected}, TOLERANCE)

        is_equal(call.gradients(), rows)
        is_equal(call.total(factors), total)
        is_equal(LayerCall.total(call, factors), total)
        added = rows.clone()
        call.write(added, add=True)
        is_equal(added, 2 * rows)
        LayerCall.write(call, added, add=True)
        is_equal(added, 3 * rows)
        squares = call.squares()
        if squares is not None and not squares.lost:
            is_equal(squares.values, rows.flatten(1).square().sum(1))


class Scale(LayerCall):
    FORMULA = "n...i,n...i->ni"


def test_a_new_kind_is_a_formula_and_a_matcher(monkeypatch):
    def matches(is_weight, inputs, weight):
        return MatchedCall(Scale, inputs, weight) if is_weight(weight) else None

    monkeypatch.setitem(LAYER_RULES, torch.mul, matches)
    make = seeded(product((4,), lambda x, w, b: torch.mul(x, w)), 3, 4)
    assert Scale in map(type, calls_of(make()))
    check(make)


def test_what_cannot_be_recorded_says_so_once_and_why():
    case = seeded(USES["func.grad inside"], 3, 4)()
    for way in SUMS:
        with pytest.warns(FallbackWarning, match="^a cannot be recorded") as said:
            case.pass_to(way, chunk_size=1)
        (warning,) = said
        assert isinstance(warning.message.__cause__, Refusal)


def test_a_whole_network_is_right_and_never_forms_the_gradients(recwarn):
    """One forward and backward of all samples, as seen in its memory."""

    def make(width: int = 6, size: int = 3) -> Case:
        torch.manual_seed(0)
        model, words = GPT(7, 5, width, 2, 1).double(), torch.randint(7, (size, 5))
        return Case(model, words, torch.randn(size, 5, 7).double(), squared)

    check(make)
    case = make(64, 32)
    formed = 32 * sum(p.nbytes for p in case.model.parameters())
    for function in SUMS:
        assert benchmark.memory(lambda f=function: case.pass_to(f)).peak < formed / 2
    assert not recwarn

    def large() -> nn.Module:
        """Two large matrices, of one outer product each, in one layer that is used twice."""
        layer = nn.Linear(600, 600)
        return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh())

    check(seeded(large, 600))


@pytest.mark.parametrize("dims", KINDS)
@pytest.mark.parametrize("images", [False, True])
def test_convolutions_by_both_ways(dims, images):
    for channels, size in ((2, 6), (24, 4)):  # the gradient itself; the Gram matrices

        def build(channels: int = channels) -> nn.Module:
            options = {"kernel_size": 2, "stride": 2, "padding": 1, "dilation": 2, "groups": 2}
            layer = KINDS[dims](channels, 2 * channels, **options)
            if images:  # without the dimension of images
                return Apply(lambda m, x: m.layer(x[0])[None].tanh().flatten(1), layer=layer)
            return nn.Sequential(layer, nn.Tanh(), nn.Flatten())

        shape = [channels] + [size] * dims
        check(seeded(build, *shape))


@pytest.mark.parametrize(("groups", "dilation"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("dims", KINDS)
def test_convolutions_of_large_images_place_by_place(dims, dilation, groups):
    """Many channels in, few out, and so many positions that a place of the kernel pays."""
    shape = {1: (16, 400), 2: (16, 20, 19), 3: (16, 9, 8, 7)}[dims]
    kernel_size, padding = (3, 2, 1)[:dims], (1, 0, 2)[:dims]

    def build() -> nn.Module:
        layer = KINDS[dims](16, 4, kernel_size, 1, padding, dilation, groups)
        return nn.Sequential(layer, nn.Tanh(), nn.Flatten())

    check(seeded(build, *shape))


def test_nothing_is_held_in_a_second_copy():
    """Neither what is written into given tensors, nor chunks, nor the columns of Jacobians."""
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    case = Case(MLP(), images, labels, F.cross_entropy)
    size = 64 * 15910 * 4  # bytes of the gradients; the Jacobians are ten times as large
    out = empty_out(case)
    for least, most, call in (
        (0, 0.2 * size, lambda: case.pass_to(gradients.func_gradients, out=out)),
        (size, 1.4 * size, lambda: case.pass_to(gradients.func_gradients, chunk_size=4)),
        (10 * size, 14 * size, lambda: jacobians.func_jacobians(case.model, images, chunk_size=4)),
    ):
        call()
        assert least <= benchmark.memory(call).peak < most


def test_a_table_that_is_renormalized_keeps_the_padding_out():
    model = Apply(
        lambda m, ids: F.embedding(ids, m.table * 1, padding_idx=0, max_norm=9.0),
        table=nn.Parameter(torch.ones(3, 1)),
    )
    ids = torch.tensor([[0, 1], [1, 2], [0, 0]])
    found = norms.gradient_norms(model, lambda words, _: words.square().sum(), ids)
    torch.testing.assert_close(found, torch.tensor([2.0, 8**0.5, 0.0]))


class OwnStart(nn.GRU):
    def forward(self, inputs, hx=None):
        return super().forward(inputs, self.weight_hh_l0[:1] if hx is None else hx)


@torch.library.custom_op("tests::tripled", mutates_args=())
def tripled(x: Tensor) -> Tensor:
    return x.clone()


tripled.register_autograd(lambda ctx, grads: 3 * grads)
tripled.register_vmap(lambda info, in_dims, x: (x.clone(), in_dims[0]))
COMPLEX = nn.Linear(4, 4)
COMPLEX.scale = nn.Parameter(torch.randn(1, 3).cdouble())
COMPLEX.mix = nn.Parameter(torch.randn(3, 3).cdouble())


def mixed_frequencies(m: Apply, x: Tensor) -> Tensor:
    frequencies = torch.fft.rfft(m.layer(x)) * m.layer.scale
    return torch.fft.irfft(frequencies @ m.layer.mix, n=4)


ODD = {
    "a rule of a function": (nn.Linear(4, 2), lambda m, x: Tripled.apply(m.layer(x))),
    "a rule of an operator": (nn.Linear(4, 2), lambda m, x: tripled(m.layer(x))),
    "a state of its own": (OwnStart(4, 4), lambda m, x: m.layer(x)[0]),
    "complex weights": (COMPLEX, mixed_frequencies),
    "a list of states": (nn.LSTMCell(4, 4), lambda m, x: m.layer(x, [x.sin(), x.cos()])[1]),
    "no units": (nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 3)), lambda m, x: m.layer(x)),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_models_have_the_gradients_of_plain_autograd(name):
    layer, run = ODD[name]
    model = Apply(run, layer=layer).double()
    assert contract.check(model, torch.randn(3, 4).double()) == ([], [])


def waved(x: Tensor) -> Tensor:
    return x.sin() + x * x.exp()


class Compiled(Apply):
    waved = torch.compile(lambda self, x: waved(x), backend="eager")


compiled = torch.compile(waved, backend="eager")


@pytest.mark.parametrize("run", [lambda m, x: compiled(x), lambda m, x: m.waved(x)])
def test_what_is_compiled_is_recorded_as_it_is_written(run):
    torch.compiler.reset()
    w, data = nn.Parameter(torch.randn(4, 2).double()), torch.randn(3, 4).double()
    case = Case(Apply(lambda m, x: waved(x @ m.w), w=w), data, data[:, :2], squared)
    expected = case.pass_to(oracle)
    case.model = Compiled(lambda m, x: run(m, x @ m.w), w=w)
    found = case.pass_to(norms.gradient_norms)
    close(found, expected["w"].flatten(1).norm(dim=1))
    assert_equal(case.pass_to(gradients.loop_gradients), expected, TOLERANCE)


def in_a_profile(self: Apply, inputs: Tensor) -> Tensor:
    with torch.profiler.record_function("a part"):
        return self.fc(inputs)


RECORDED = {
    "a named part": Apply(in_a_profile, fc=nn.Linear(4, 2)),
    "data parallel": nn.DataParallel(nn.Linear(4, 2)),
    "spectral norm": nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2)),
    "spectral norm hook": nn.utils.spectral_norm(nn.Linear(4, 2)),
    "spectral norm of a convolution": nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 2, 2)),
        nn.Flatten(),
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_what_does_not_touch_the_samples_is_recorded(name):
    model = RECORDED[name].double()
    data, targets = torch.randn(3, 4).double(), torch.randn(3, 2).double()
    expected = gradients.loop_gradients(model, squared, data, targets)
    squares = [rows.flatten(1).square().sum(1) for rows in expected.values()]
    with warnings.catch_warnings(action="error"):
        found = norms.gradient_norms(model, squared, data, targets)
    close(found, sum(squares).sqrt())


def test_what_the_forward_pass_keeps_does_not_meet_the_check_of_unused_parameters(recwarn):
    def keeping(m: Apply, x: Tensor) -> Tensor:
        if m.kept is None:
            m.kept = x.sum()
        return m.fc(x) * m.kept

    layer = nn.Linear(4, 2)
    unused = nn.Parameter(torch.ones(2))
    data, targets = torch.randn(3, 4), torch.randn(3, 2)
    plain = Apply(lambda m, x: m.fc(x) * x.sum(), fc=layer, unused=unused)
    expected = Case(plain, data, targets, squared).pass_to(gradients.loop_gradients)
    case = Case(Apply(keeping, fc=layer, unused=unused, kept=None), data, targets, squared)
    got = case.pass_to(gradients.func_gradients, out=empty_out(case))
    assert_equal(got, expected, 1e-5)
    assert not recwarn


def test_a_sum_refuses_a_layer_in_several_pieces(monkeypatch):
    """A kind of layer that yields several has a sum of its own."""
    (call, _) = calls_of(seeded(lambda: nn.Linear(4, 2), 3, 4)())
    pieces = [*call.operands()] * 2
    monkeypatch.setattr(type(call), "operands", lambda self: iter(pieces))
    with pytest.raises(ValueError):  # noqa: PT011 - of Python itself
        call.total(torch.ones(3).double())
