"""The self-check: it names what goes wrong, stays quiet on what does not, and leaves no trace."""

import copy
import functools
import operator
import random
import re
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.limits import Diagnosis, diagnose, entries
from helpers.transforms.fallback import FallbackWarning
from tests.matrix.test_every_way import CASES, prepare, truth_of
from tests.support import zoo
from tests.support.lesson_06 import run, top
from tests.support.oracle import assert_equal
from tests.support.snapshot import Snapshot

IMAGES, LABELS = top()["images"], top()["labels"]
Classifier, per_sample_grads = top()["Classifier"], top()["per_sample_grads"]

# By entry, what is wrong in its cells: a model; and its loss, data and targets if not as usual.
USUAL = "F.cross_entropy", "images", "labels"
MEASURED = [
    ("data-dependent", "Classifier()", "indexed"),
    ("data-dependent", "Classifier()", "one_hot"),
    ("item", "Scaled()"),
    ("numpy", "ByNumpy()"),
    ("dynamic-shape", "Classifier()", "of_positive"),
    ("memory-format", "conv_net(ChannelsLast)"),
    ("nested-tensors", "Masked().eval()", USUAL[0], "rows"),
    ("batchnorm-in-training", "conv_net(nn.BatchNorm2d(4))"),
    ("batchnorm-in-training", "nn.Sequential(Classifier(), nn.BatchNorm1d(10))"),
    ("batchnorm-in-training", "conv_net(nn.InstanceNorm2d(4, track_running_stats=True))"),
    ("in-place-write", "Padding()"),
    ("in-place-write", "Remembering()"),
    ("in-place-write", "Reading()", USUAL[0], "rows"),
    ("embedding-max-norm", "words(max_norm=1.0)", USUAL[0], "tokens"),
    ("random-draws", "nn.Sequential(nn.Dropout(0.5), Classifier())"),
    ("autograd-function", "Squared(OldSquare)"),
    ("autograd-function", "Squared(NewSquare)"),
    ("autograd-function", "ByOperator()"),
    ("autograd-function", "hooked"),
    ("checkpointing", "Checkpointed()"),
    ("checkpointing", "hooked"),
    ("backward-inside", "Classifier()", "backward_loss"),
    ("requires-grad-inside", "Penalized()"),
    ("sparse-gradients", "words(sparse=True)", USUAL[0], "tokens"),
    ("autocast", "Mixed(Classifier(), nn.LayerNorm(10))", USUAL[0], "images.float()"),
    ("loss-is-no-scalar", "Classifier()", "each_loss"),
    ("stateless-api", "nn.DataParallel(Classifier())"),
    ("stateless-api", "scripted"),
    ("class-weights", "Classifier()", "weighted"),
    ("means-of-unequal-units", "model", "of_tokens", "tokens", "following"),
    ("loss-that-broadcasts", "model", "squared", "images", "ages"),
    ("samples-that-meet-in-the-loss", "Classifier()", "contrastive", "images", "partners"),
    ("samples-that-meet-in-the-loss", "Classifier()", "balance"),
    ("aliased-buffers", "Counter(in_place=True)"),
    ("shared-layer", "Twice()"),
    ("escaped-tensor", "Stashing()"),
    ("frozen-parameters", "broken"),
    ("frozen-parameters", "flagging"),
    ("no-gradient", "ByData()"),
    ("written-weights", "Clamping()"),
    ("state-on-self", "Counter()"),
    ("samples-that-meet", "Centering()"),
    ("numpy-draws", "Noisy()"),
    ("no-gradient", "Classifier()", "lambda p, t: F.cross_entropy(p.detach(), t)"),
    ("operator-fallback", "Reader()", USUAL[0], "rows.float()"),
    ("operator-fallback", "Classifier()", "scattered"),
]
# Where the bare composition is right about these samples all the same: it is slow, its loop is
# wrong about a batch, or what was found is about a later call or parameters that nobody asked for.
RIGHT_ALL_THE_SAME = {
    "bilinear",
    "embedding bag",
    "encoder train",
    "encoder eval",
    "wild: sparse buffer",
    "no_grad inside",
    "frozen",
    "buffer rebound",
    "wild: penalty of a slope",
    "wild: loss of what a method kept",
}
EQUAL = "func_gradients is equal for all"
HARMLESS = "weight norm hook"  # what is left in its layer is computed anew by each forward
DIAGNOSED = [
    name for name in CASES if name not in zoo.RECURRENCES and not name.startswith("run before")
]


def found(diagnosis: Diagnosis) -> list[str]:
    return [finding.entry for finding in diagnosis.findings]


def diagnosed(model: nn.Module, loss_fn: object, data: Tensor, targets: Tensor) -> Diagnosis:
    """Diagnose a case, and require that it left no trace and no warning."""
    before = Snapshot(model, loss_fn, data, targets)
    streams = random_streams()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", FallbackWarning)
        diagnosis = diagnose(model, loss_fn, data, targets)
    assert before.changes() == []
    assert random_streams() == streams
    return diagnosis


def random_streams() -> tuple[object, ...]:
    of_numpy = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), of_numpy[1].tobytes(), of_numpy[2], random.getstate()


@pytest.mark.parametrize("case", MEASURED, ids=" ".join)
def test_it_names_the_entry(case):
    name, model, *others = case
    loss_fn, data, targets = [*others, *USUAL[len(others) :]]
    names, *_ = run(name)
    data = eval(data, names)
    like = data if data.is_floating_point() else names["images"]  # its dtype
    model = eval(model, names).to(like)
    diagnosis = diagnosed(model, eval(loss_fn, names), data, eval(targets, names))
    assert found(diagnosis)[0] == name
    assert set(found(diagnosis)) <= {name, "samples-that-meet"}
    assert entries()[name].fix in str(diagnosis)


def goes_wrong(name: str) -> bool:
    """Return whether the bare composition raises, returns a wrong number or harms the model."""
    case, truth = CASES[name](), truth_of(name).gradients
    before = Snapshot(case.model)
    try:
        with torch.compiler.set_stance("force_eager"):
            got = case.pass_to(per_sample_grads)
        assert_equal({name: got[name] for name in truth}, truth, 1e-9)
        return bool(before.changes())
    except Exception:  # whatever it is; and what a transform left dead cannot be read
        return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DIAGNOSED)
def test_what_goes_wrong_is_found_and_what_does_not_is_clean(name):
    case = CASES[name]()
    prepare(case)
    diagnosis = case.pass_to(diagnosed)
    wrong = goes_wrong(name) and name != HARMLESS
    assert bool(diagnosis.findings) == (wrong or name in RIGHT_ALL_THE_SAME)
    assert diagnosis.conclusion.startswith(EQUAL)


def experts(m, x):
    """A shared expert, and others of which each sample is sent to one."""
    chosen = m.route(x).argmax(1)[:, None]
    outputs = m.fc(x)
    for number, expert in enumerate(m.routed):
        outputs = outputs + (chosen == number) * expert(x)
    return outputs


class Kept:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0


@functools.lru_cache
def positions(size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float64)


def counted(m, x):
    m.kept.calls += 1
    return m.fc(x)


def asking(m, x):
    if x.requires_grad or m.fc.weight.requires_grad:
        return m.fc(x)
    return m.fc(x).tanh() * 1


def slopes(m, x):
    slope = torch.func.grad(lambda row: m.fc(row).tanh().sum())
    return torch.func.vmap(slope)(x)[:, :2]


def under_autocast(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return m.head(m.fc(x.float()).tanh()).double()


def noticing(m, x):
    now = warnings.filters, warnings.showwarning
    assert all(map(operator.is_, m.warns, now))
    return m.fc(x)


def model_of(forward, **parts: object) -> nn.Module:
    return zoo.Apply(forward, fc=nn.Linear(3, 2), **parts).double()


def of_complex() -> nn.Module:
    weight = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128))
    return zoo.Apply(lambda m, x: (x.to(m.weight.dtype) @ m.weight).abs(), weight=weight)


def mixed(forward) -> nn.Module:
    return zoo.Apply(forward, fc=nn.Linear(3, 2), head=nn.Linear(2, 2).double())


CLEAN = {
    "a deep copy in the forward": lambda: model_of(
        lambda m, x: copy.deepcopy(m.act)(m.fc(x)), act=nn.Tanh()
    ),
    "experts": lambda: model_of(
        experts, route=nn.Linear(3, 3), routed=nn.ModuleList(nn.Linear(3, 2) for _ in range(3))
    ),
    "a float32 layer": lambda: mixed(lambda m, x: m.head(m.fc(x.float()).double())),
    "autocast": lambda: zoo.Apply(under_autocast, fc=nn.Linear(3, 2), head=nn.Linear(2, 2)),
    "requires_grad asked": lambda: model_of(asking),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2).double()),
    "state in slots": lambda: model_of(counted, kept=Kept()),
    "lru_cache": lambda: model_of(lambda m, x: m.fc(x) + positions(2)),
    "complex": of_complex,
    "a derivative": lambda: model_of(slopes),
    "a scripted part": lambda: nn.Sequential(torch.jit.script(nn.Linear(3, 2).double())),
}
DATA, TARGETS = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.filterwarnings("ignore")
def test_no_false_alarm(name, mode):
    model = CLEAN[name]()
    with mode():
        diagnosis = diagnosed(model, zoo.squared, DATA, TARGETS)
    assert found(diagnosis) == []
    assert diagnosis.conclusion.startswith(EQUAL)


def contrastive(predictions, targets):
    return F.cross_entropy(predictions @ targets.T, torch.arange(len(predictions)))


def test_warnings_of_the_process_are_left_alone():
    """As another thread sees them while a model runs."""
    before = warnings.filters, warnings.showwarning
    model = model_of(noticing, warns=before)
    assert diagnose(model, zoo.squared, DATA, TARGETS).findings == ()


def test_losses_are_told_apart_by_their_numbers():
    """Samples that meet in the loss are no means of unequal units, and nothing else either."""
    (finding,) = diagnosed(nn.Linear(3, 2).double(), contrastive, DATA, TARGETS).findings
    assert finding.entry == "samples-that-meet-in-the-loss"
    assert "have 0 each" in finding.measured


def test_the_weights_of_classes_are_found_where_all_losses_are_equal():
    """As they are for a head that is made anew, whatever the weights."""
    labels, weight = torch.tensor([0, 1, 1, 0]), torch.tensor([1.0, 2]).double()
    weighted = functools.partial(F.cross_entropy, weight=weight)
    head = nn.Linear(3, 2).double()
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    (finding,) = diagnosed(head, weighted, DATA, labels).findings
    assert finding.entry == "class-weights"
    assert "0.167, 0.333, 0.333, 0.167" in finding.measured


def test_samples_that_meet_are_found_in_a_small_part_of_the_loss():
    def run(m, x):
        balance = m.fc(x).softmax(1).mean(0).square().sum()
        return m.fc(x), balance

    def loss_fn(predictions, _):
        logits, balance = predictions
        return logits.square().mean() + 10 + 1e-5 * balance

    (finding,) = diagnosed(model_of(run), loss_fn, DATA, TARGETS).findings
    assert finding.entry == "samples-that-meet-in-the-loss"
    assert re.search(r"in the mean, a difference of \S+e-0\d", finding.measured)


@pytest.mark.parametrize("shape", [(-1,), ()], ids=["Flatten", "squeeze"])
def test_predictions_of_one_number_each(shape):
    """Of a batch of one, `squeeze` leaves no dimension."""

    def run(m, x):
        return m.fc(x).view(shape if len(x) == 1 else -1)

    def scaled(predictions, targets):
        weights = targets.exp()
        return (weights * (predictions - targets) ** 2).sum() / weights.sum()

    model = zoo.Apply(run, fc=nn.Linear(3, 1)).double()
    for loss_fn, expected in (
        (F.mse_loss, []),
        (functools.partial(F.mse_loss, reduction="sum"), []),
        (scaled, ["class-weights"]),
    ):
        assert found(diagnosed(model, loss_fn, DATA, TARGETS[:, 0])) == expected


def test_what_raises_in_training_mode_does_not_hide_the_rest():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.BatchNorm2d(2),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(2 * 26 * 26, 10),
    )
    diagnosis = diagnosed(model.double(), F.cross_entropy, IMAGES, LABELS)
    assert [(each.where, each.entry) for each in diagnosis.findings] == [
        ("1", "batchnorm-in-training"),
        ("2", "batchnorm-in-training"),
        ("3", "random-draws"),
    ]
    assert str(diagnosis).count(entries()["batchnorm-in-training"].fix) == 1
    assert str(diagnosis).startswith("1, 2: raises RuntimeError")
    assert diagnosis.conclusion.startswith(EQUAL)
    assert "1, 2, 3 in evaluation mode" in diagnosis.conclusion


def test_an_error_that_no_entry_covers_is_shown():
    def refusing(self, images):
        if torch._C._functorch.is_functorch_wrapped_tensor(images):
            raise RuntimeError("not under transforms")
        return self.inner(images)

    model = zoo.Apply(refusing, inner=Classifier()).double()
    (finding,) = diagnosed(model, F.cross_entropy, IMAGES, LABELS).findings
    assert (finding.entry, finding.where) == ("unknown", "the model")
    assert finding.measured == "raises RuntimeError: not under transforms"


@pytest.mark.parametrize(
    ("name", "kind"), [("shared-layer", "Twice"), ("escaped-tensor", "Stashing")]
)
def test_a_model_that_a_transform_has_harmed_is_recognised(name, kind):
    broken = run(name)[0][kind]().to(IMAGES)
    per_sample_grads(broken, F.cross_entropy, IMAGES, LABELS)
    diagnosis = diagnose(broken, F.cross_entropy, IMAGES, LABELS)
    assert found(diagnosis) == [name]
    assert "not possible" in diagnosis.conclusion


def laplacian(self: zoo.Apply, inputs: Tensor) -> Tensor:
    with torch.enable_grad():
        inputs = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(inputs).sum(), inputs, create_graph=True)
        trace = 0
        for i, component in enumerate(slope.T):
            (row,) = torch.autograd.grad(component.sum(), inputs, create_graph=True)
            trace = trace + row[:, i]
        return trace[:, None]


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8)])
@pytest.mark.parametrize("forward", [laplacian, lambda m, x: m.net(x)])
def test_finite_differences_find_what_the_loop_gets_wrong(forward, norm):
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), norm, nn.Linear(8, 1))
    model = zoo.Apply(forward, net=net)
    diagnosis = diagnose(model, zoo.squared, torch.randn(4, 2), torch.ones(4, 1))
    wrong = forward is laplacian and isinstance(norm, nn.LayerNorm)
    assert ("layernorm-third-order" in found(diagnosis)) == wrong


def by_jvp(self: zoo.Apply, inputs: Tensor) -> Tensor:
    """A Laplacian along a basis in float32, which a copy in float64 does not take."""

    def along(point: Tensor) -> Tensor:
        total = 0
        for vector in torch.eye(2):

            def slope(x: Tensor, vector: Tensor = vector) -> Tensor:
                return torch.func.jvp(lambda y: self.net(y[None]).sum(), (x,), (vector,))[1]

            total = total + torch.func.jvp(slope, (point,), (vector,))[1]
        return total

    return torch.func.vmap(along)(inputs)[:, None]


def network_with(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), *layers, nn.Linear(8, 1))


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8)])
def test_what_does_not_run_in_float64_is_compared_in_its_own_precision(norm):
    torch.manual_seed(4)
    model = zoo.Apply(by_jvp, net=network_with(nn.Tanh(), norm))
    data, targets = torch.randn(4, 2), torch.ones(4, 1)
    diagnosis = diagnosed(model, zoo.squared, data, targets)
    assert "finite differences" in diagnosis.ran
    if isinstance(norm, nn.RMSNorm):
        assert found(diagnosis) == []
        return
    # A twin in float64, basis included, is as far off along the same directions.
    torch.set_default_dtype(torch.float64)
    try:
        twin = copy.deepcopy(model).double()
        of_twin = diagnosed(twin, zoo.squared, data.double(), targets.double())
    finally:
        torch.set_default_dtype(torch.float32)
    percent = []
    for each in (diagnosis, of_twin):
        (finding,) = each.findings
        assert finding.entry == "layernorm-third-order"
        percent.append(float(re.search(r"(\d+)% off", finding.measured)[1]))
    assert percent[0] == pytest.approx(percent[1], rel=0.05)


def double_backward(self: zoo.Apply, inputs: Tensor) -> Tensor:
    """The residual of a heat equation in (time, place), whose gradient is not 0."""
    inputs = inputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(self.net(inputs).sum(), inputs, create_graph=True)
    (second,) = torch.autograd.grad(slope[:, 1].sum(), inputs, create_graph=True)
    return slope[:, :1] - second[:, 1:]


def trace(self: zoo.Apply, inputs: Tensor) -> Tensor:
    def along(point: Tensor) -> Tensor:
        return torch.func.hessian(lambda x: self.net(x[None]).sum())(point).trace()

    return torch.func.vmap(along)(inputs)[:, None]


BENT = [nn.ReLU(), nn.LeakyReLU(), nn.Sequential(nn.MaxPool1d(2), nn.Upsample(8)), nn.Softplus()]


@pytest.mark.parametrize("bend", BENT)
@pytest.mark.parametrize("forward", [trace, by_jvp, double_backward])
def test_second_derivatives_of_a_piecewise_linear_network(forward, bend):
    layers = nn.Sequential(nn.Unflatten(1, (1, 8)), bend, nn.Flatten())
    model = zoo.Apply(forward, net=network_with(layers)).double()
    if forward is by_jvp:
        model.float()
    dtype = next(model.parameters()).dtype
    data, targets = torch.randn(4, 2, dtype=dtype), torch.ones(4, 1, dtype=dtype)
    names = set(found(diagnosed(model, zoo.squared, data, targets)))
    assert ("piecewise-linear" in names) == (not isinstance(bend, nn.Softplus))
    assert names <= {"piecewise-linear", "requires-grad-inside"}


def test_a_derivative_that_is_cut_off_is_no_straight_line():
    def cut(self, inputs):
        inputs = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(inputs).sum(), inputs)  # without create_graph
        return slope

    model = zoo.Apply(cut, net=network_with(nn.Tanh())).double()
    names = found(diagnosed(model, zoo.squared, DATA[:, :2], DATA[:, :2]))
    assert "no-gradient" in names
    assert "piecewise-linear" not in names


class Attending(nn.Linear):
    def forward(self, inputs: Tensor, keeps: Tensor) -> Tensor:
        scores = super().forward(inputs) @ inputs.transpose(1, 2)
        scores = scores.masked_fill(~keeps[:, None], -torch.inf)
        return (scores.softmax(2) @ inputs).mean(1)


TEXTS, KEEPS = torch.randn(4, 5, 3).double(), torch.ones(4, 5, dtype=torch.bool)
KEEPS[2] = False
NO_WORDS = torch.tensor([[1, 0, 1], [-100, -100, -100], [0, 0, 1], [-100, 1, 1]])
CLASSES, SPOTS = torch.tensor([0, 1, 2, 0]), DATA * torch.tensor([1, 1, 1, 0])[:, None]
ATTENTION = Attending(3, 3).double()
PLAIN, TALL = (
    nn.Linear(3, 3).double(),
    zoo.Apply(lambda m, x: m.fc(x).transpose(1, 2), fc=nn.Linear(3, 2)).double(),
)
WITHOUT_BIAS = nn.Linear(3, 2, bias=False).double()
weightless = functools.partial(F.cross_entropy, weight=torch.tensor([1.0, 0, 1]).double())


def of(function) -> nn.Module:
    return zoo.Apply(lambda m, x: function(m.fc(x)), fc=WITHOUT_BIAS)


# The sample without a gradient, and what is diagnosed; and what else must be found.
LACKING = {
    "no label": (1, TALL, F.cross_entropy, TEXTS[:, :3], NO_WORDS, "means-of-unequal-units"),
    "a class of weight 0": (1, PLAIN, weightless, DATA, CLASSES),
    "a row masked": (2, ATTENTION, zoo.squared, (TEXTS, KEEPS), TEXTS[:, 0]),
    "sqrt at 0": (3, of(lambda z: z.square().sqrt()), zoo.squared, SPOTS, TARGETS),
    "log of 0": (3, of(lambda z: z.abs().log()), zoo.squared, SPOTS, TARGETS),
    "length 0": (3, of(lambda z: z / z.norm(dim=1)[:, None]), zoo.squared, SPOTS, TARGETS),
}


@pytest.mark.parametrize("name", LACKING)
def test_samples_without_a_gradient_are_named_and_hide_nothing(name):
    index, model, loss_fn, data, targets, *others = LACKING[name]
    diagnosis = diagnosed(model, loss_fn, data, targets)
    assert found(diagnosis) == ["sample-without-a-gradient", *others]
    assert f"for sample {index} of the first 4" in diagnosis.findings[0].measured
    assert {"rows alone and together", "the loss of the batch"} <= set(diagnosis.ran)


class Experts(nn.Module):
    """Two experts a token, with the logits of the router beside the others, in some layout."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.router, self.experts, self.layout = nn.Linear(3, 4), nn.Linear(3, 20), layout

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        scores = self.router(inputs)  # (B, T, E)
        outputs = self.experts(inputs).unflatten(2, (4, 5))  # (B, T, E, C)
        logits = (scores.softmax(2)[..., None] * outputs).sum(2)
        if self.layout == "load":
            return {"logits": logits, "router": scores.softmax(2).mean((0, 1))}
        if self.layout == "steps first":
            scores = scores.transpose(0, 1)
        return {"router": scores.flatten(0, 1), "logits": logits}


def of_tokens(outputs: dict[str, Tensor], words: Tensor) -> Tensor:
    return F.cross_entropy(outputs["logits"].flatten(0, 1), words.flatten())


def balanced(outputs: dict[str, Tensor], words: Tensor) -> Tensor:
    router = outputs["router"]
    load = router.softmax(-1).mean(0) if router.dim() == 2 else router
    return of_tokens(outputs, words) + load.square().sum()


def small(outputs: dict[str, Tensor], words: Tensor) -> Tensor:
    return of_tokens(outputs, words) + outputs["router"].logsumexp(1).square().mean()


WORDS = torch.randint(5, (4, 5), generator=torch.Generator().manual_seed(0))
PADDED = WORDS.masked_fill(torch.arange(5) > torch.tensor([[4], [1], [2], [4]]), -100)


@pytest.mark.parametrize("layout", ["tokens", "steps first", "load"])
@pytest.mark.parametrize("loss_fn", [of_tokens, balanced, small])
def test_an_output_of_another_length_hides_nothing(loss_fn, layout):
    if (loss_fn, layout) == (small, "load"):
        pytest.skip("a load has no logits")
    model = Experts(layout).double()
    meets = ["samples-that-meet-in-the-loss"] * (loss_fn is balanced)
    for words, units in ((WORDS, []), (PADDED, ["means-of-unequal-units"])):
        diagnosis = diagnosed(model, loss_fn, TEXTS, words)
        assert found(diagnosis) == [*units, *meets]


class WithLoss(Experts):
    """Return the loss among the outputs, as models of transformers do."""

    def forward(self, inputs: Tensor, words: Tensor) -> dict[str, Tensor]:
        outputs = super().forward(inputs)
        return {"loss": balanced(outputs, words), **outputs}


def test_a_loss_among_the_outputs_hides_nothing():
    model = WithLoss("tokens").double()
    diagnosis = diagnosed(model, lambda outputs, _: outputs["loss"], (TEXTS, PADDED), None)
    assert found(diagnosis) == ["means-of-unequal-units", "samples-that-meet-in-the-loss"]


def noisy(self: zoo.Apply, inputs: Tensor) -> Tensor:
    return self.fc(inputs) + torch.randn(2).double()


class Writing(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.offset.add_(1)


WRITING = Writing(3, 2).double()
WRITING.register_buffer("offset", torch.zeros(()).double())
ROUGH = zoo.Apply(lambda m, x: (1e3 * by_jvp(m, x)).sin(), net=network_with(nn.Tanh()))
# By the check that cannot be made: a word of the reason, and what is diagnosed.
SKIPPED = {
    "gradients": ("raises", model_of(lambda m, x: m.fc(x) * x.sum().item())),
    "a second call": ("changed", WRITING),
    "rows alone and together": ("random", model_of(noisy)),
    "the loss of the batch": ("batch of 4", model_of(lambda m, x: m.fc(x.view(3))[None])),
    "finite differences": ("two steps differ", ROUGH),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_a_check_that_cannot_be_made_is_named_with_the_reason(name):
    reason, model = SKIPPED[name]
    data = DATA.float()[:, :2] if model is ROUGH else DATA
    targets = TARGETS[:, :1].float() if model is ROUGH else TARGETS
    diagnosis = diagnosed(model, zoo.squared, data, targets)
    assert name not in diagnosis.ran
    assert reason in diagnosis.skipped[name]
    for printed in (str(diagnosis), diagnosis._repr_markdown_()):
        line = next(line for line in printed.splitlines() if reason in line and name in line)
        assert "not checked" in line.lower()


RIGHT = {
    "model": Classifier().double(),
    "loss_fn": F.cross_entropy,
    "data": IMAGES,
    "targets": LABELS,
}
REFUSED = {
    "model must be": {"model": "cnn"},
    "loss_fn must be": {"loss_fn": None},
    "not a class": {"loss_fn": nn.NLLLoss},
    "floating point": {"loss_fn": lambda z, y: (z.argmax(1) == y).sum()},
    "finite": {"data": IMAGES * torch.nan},
    "empty": {"data": IMAGES[:0], "targets": LABELS[:0]},
    "the model raised": {"data": IMAGES[..., :20]},
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_refused(words):
    with pytest.raises((TypeError, ValueError), match=words):
        diagnose(**(RIGHT | REFUSED[words]))
