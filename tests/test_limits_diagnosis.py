"""The self-check: it names the cause, stays quiet on what is clean, and leaves no trace."""

import random
import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.limits import Diagnosis, diagnose, entries
from tests.support import wild, zoo
from tests.support.lesson_06 import NAMES, as_seen, run, top
from tests.support.oracle import assert_equal
from tests.support.snapshot import Snapshot
from tests.test_matrix import CASES, prepare, truth_of

BATCH = top()["images"], top()["labels"]
Classifier, bare_gradients = top()["Classifier"], top()["bare_gradients"]

# Entries that go wrong in the call, which `diagnose` does not see.
IN_THE_CALL = """captured-buffer missing-batch-dimension default-in-dims tied-names mixed-modes
wrong-loss-reduction batchnorm-in-a-loop misspelled-name shared-targets keyword-arguments
attached-parameters tied-weights-apart stale-copies mode-that-does-not-arrive chunks-concatenated
grouped-convolution compiled-names prelu-in-jacobians numpy-of-a-result forward-mode-attention
forward-mode-lstm forward-mode-operator stacked-inside compiled-inside graph-for-each-batch-size
autograd-grad-under-vmap requires-grad-is-false cond-under-grad recurrent-rule export-of-gradients
padding-without-a-mask sample-not-finite opacus-not-initialized opacus-gradients-not-cleared
opacus-wrapper diagonal-of-the-hessian attention-mask out-of-memory hook-called-once
forward-mode-sharded compiled-forward-mode compiled-custom-backward opacus-tied-weights
opacus-mean-of-tokens projection-too-large jacobian-backends wrapped-forward"""
IN_THE_CALL = IN_THE_CALL.split()
# What an entry's first cell shows to be wrong; by default the first of these.
USUAL = "broken, F.cross_entropy, images, labels"
WRONG = {
    **dict.fromkeys(["nested-tensors"], "rows"),
    **dict.fromkeys(["embedding-max-norm", "sparse-embedding"], "tokens"),
    **dict.fromkeys(["layernorm-under-autocast", "fused-attention"], "singles"),
}
WRONG = {name: USUAL.replace("images", inputs) for name, inputs in WRONG.items()} | {
    "boolean-mask": "classifier, masked_loss, images, labels",
    "index-by-target": "classifier, indexed_loss, images, labels",
    "one-hot": "classifier, one_hot_loss, images, labels",
    "backward-inside": "classifier, backward_loss, images, labels",
    "loss-is-no-scalar": "classifier, loss_fn, images, labels",
    "class-weights": "classifier, loss_fn, images, labels",
    "means-of-unequal-units": (
        "model, lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()), tokens, following"
    ),
    "loss-that-broadcasts": "model, F.mse_loss, images, ages",
    "low-precision": "half, F.cross_entropy, images.bfloat16(), labels",
    # The bare composition has harmed what the cell made: so a new one.
    "packed-sequence": "LastState().to(rows), F.cross_entropy, rows, labels",
    "recurrent-layer": "Reading().to(rows), F.cross_entropy, rows, labels",
    "lstm-fallback": "Reader().to(singles), F.cross_entropy, singles, labels",
    "shared-layer": USUAL.replace("broken", "Twice().to(images)"),
    "stashed-activation": USUAL.replace("broken", "Stashing().to(images)"),
    "written-weights": USUAL.replace("broken", "Clamping().to(images)"),
    "state-on-self": USUAL.replace("broken", "Counter().to(images)"),
    "replaced-batchnorm": USUAL.replace("broken", "broken.train()"),
    "operator-fallback": "classifier, scattered_loss, images, labels",
}
# Entries whose case has samples that meet, besides.
MEETING = [
    *("item", "numpy-or-list", "tensor-of-tensors", "dynamic-shape", "sample-into-buffer"),
    "replaced-batchnorm",
]
# By case, what is found, and where. With a star the bare composition is right all the same: it is
# slow, or what is said holds for a copy, for a batch of one, or for gradients that are zero or not
# wanted.
TABLE = """\
bilinear * | operator-fallback at b (_trilinear)
shared layer | shared-layer at first, second
frozen * | frozen-parameters at 0.weight, 2.bias
unused * | no-gradient at z.weight, z.bias
no_grad inside * | no-gradient at a.weight, a.bias
buffer counts | aliased-buffers at seen, calls
buffer rebound * | rebound-buffers at seen, calls; samples-that-meet at fc
stash | stashed-activation at activation
weight norm hook | stashed-activation at weight
spectral norm hook | aliased-buffers at weight_u, weight_v; stashed-activation at weight
spectral norm | aliased-buffers at parametrizations.weight.0._u, parametrizations.weight.0._v
embedding bag * | operator-fallback at the model (_embedding_bag)
instance norm tracking | instancenorm-with-statistics at 1
wild: kept deep inside | state-on-self at cache
wild: kept in an object | state-on-self at cache
wild: kept in slots | state-on-self at cache
wild: kept in a tensor | captured-buffer at the model; state-on-self at cache
wild: kept on a layer | state-on-self at fc.scale
wild: hooks on first use | stashed-activation at seen
wild: parameters in a list | parameter-in-a-list at extra, shift
wild: parameter in a closure | wrapped-forward at fc.bias, fc.weight
wild: closure into a function | wrapped-forward at fc.weight
wild: closure into an old function | autograd-function at the model; wrapped-forward at fc.weight
wild: channels last | memory-format at the model
wild: solve columns | unknown at column, fc.weight, fc.bias
wild: index_fill | samples-that-meet at the model
wild: penalty of a slope * | samples-that-meet at the model
wild: custom operator | custom-operator at the model
wild: old function of a number | autograd-function at the model
wild: reversible | autograd-function at the model
wild: force | requires-grad-inside at the model
wild: straight through * | requires-grad-is-false at the model
wild: condition | unknown at the model; samples-that-meet at head
wild: seed of its own | random-draws at the model
wild: tokens as images * | normalisation-of-tokens at norm
wild: max norm | written-weights at table.weight
wild: weight halved | written-weights at fc.weight
wild: frozen weight halved |
    captured-buffer at the model; frozen-parameters at fc.weight; written-weights at fc.weight
wild: checkpoint | checkpointing at the model
wild: checkpoint reentrant | autograd-function at the model
wild: scripted | scripted-module at the model
wild: data parallel | data-parallel at the model
wild: item | item at the model
wild: recurrence in place | copy-into-zeros at the model
wild: sparse buffer * | operator-fallback at the model (_sparse_addmm)
wild: padding looked for | data-dependent-branch at the model
wild: key padding mask, eval | nested-tensors at encoder
buffer in place | sample-into-buffer at the model; samples-that-meet at fc
buffer not persistent | sample-into-buffer at the model; samples-that-meet at fc
encoder train * | fused-attention at self_attn
encoder eval * | fused-attention at self_attn
wild: stem batch norm * | normalisation-transposed at norm"""
RECURRENT = [name for name in zoo.SEQUENCES if name.split()[0] in ("lstm", "gru", "rnn")]
FOUND = {
    name: [f"recurrent-layer at {'cell' if name.endswith('cell') else 'layer'}"]
    for name in RECURRENT
}
RIGHT_ALL_THE_SAME = set()
for line in TABLE.replace("\n    ", " ").splitlines():
    case, _, findings = line.partition(" | ")
    FOUND[case.removesuffix(" *")] = findings.split("; ")
    if case.endswith(" *"):
        RIGHT_ALL_THE_SAME.add(case.removesuffix(" *"))


def found(diagnosis: Diagnosis) -> list[str]:
    return [f"{finding.entry} at {finding.where}" for finding in diagnosis.findings]


def diagnosed(*case: object) -> tuple[Diagnosis, list[warnings.WarningMessage]]:
    """Diagnose a case, require that it left no trace, and return what was warned of as well."""
    before, streams = Snapshot(*case), random_streams()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        diagnosis = diagnose(*case)
    assert before.changes() == []
    assert random_streams() == streams
    assert all(finding.cause and finding.fix for finding in diagnosis.findings)
    return diagnosis, heard


def random_streams() -> tuple[object, ...]:
    of_numpy = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), of_numpy[1].tobytes(), of_numpy[2], random.getstate()


@as_seen
@pytest.mark.parametrize("name", [name for name in NAMES if name not in IN_THE_CALL])
def test_it_names_the_cause_of_every_entry(name):
    diagnosis, _ = diagnosed(*run(name, 1).case(WRONG.get(name, USUAL)))
    assert [finding.entry for finding in diagnosis.findings] == [
        name,
        *["samples-that-meet"] * (name in MEETING),
    ]
    assert diagnosis.findings[0].fix == entries()[name].fix


# torch's own: of a checkpoint whose first layer needs no gradient, and of nested tensors.
TORCH_WARNS = "wild: checkpoint reentrant", "wild: key padding mask, eval"
LINKED = [f"wild: {name}" for name in wild.LINKED]
BEFORE = [name for name in CASES if name.startswith("run before")]
DIAGNOSED = [name for name in CASES if name not in (*zoo.RECURRENCES, *LINKED, *BEFORE)]


@pytest.mark.parametrize("name", [*DIAGNOSED, *LINKED])
def test_a_case_is_named_or_clean_and_left_as_it_was(name):
    case = CASES[name]()
    prepare(case)
    diagnosis, heard = diagnosed(*case.args)
    assert name in LINKED or found(diagnosis) == FOUND.get(name, [])
    assert name == "wild: scripted" or diagnosis.comparison["equal"].all()
    assert name in TORCH_WARNS or not heard


def goes_wrong(name: str) -> bool:
    """Return whether the bare composition raises, returns a wrong number or harms the model."""
    case, truth = CASES[name](), truth_of(name).gradients
    before = Snapshot(case.model)
    try:
        with torch.compiler.set_stance("force_eager"):
            got = bare_gradients(*case.args)
        assert_equal({name: got[name] for name in truth}, truth, 1e-9)
        return bool(before.changes())
    except Exception:  # whatever it is; and what a transform left dead cannot be read
        return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DIAGNOSED)
def test_what_goes_wrong_is_named_and_what_does_not_is_clean(name):
    assert goes_wrong(name) == (name in FOUND and name not in RIGHT_ALL_THE_SAME)


WITH_A_CALL = ["aliased-buffers", "numpy-draws", "normalisation-of-tokens", "nested-tensors"]


@as_seen
@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*IN_THE_CALL, *WITH_A_CALL)])
def test_a_way_out_is_clean(name):
    done, case = run(name), WRONG.get(name, USUAL)
    if not case.startswith("broken") or not isinstance(done.names.get("mended"), nn.Module):
        return  # another call or another loss
    assert found(diagnose(*done.case(case.replace("broken", "mended")))) == []


def test_a_difference_is_said_and_that_there_is_nothing_to_compare():
    frozen = Classifier().double().requires_grad_(False)
    conclusion = diagnose(frozen, F.cross_entropy, *BATCH).conclusion
    assert "no parameter requires a gradient" in conclusion
    conclusion = diagnose(*run("numpy-draws", 1).case(USUAL)).conclusion
    assert "draws random numbers" in conclusion


def test_draws_of_python_are_found_and_given_back():
    model = zoo.Apply(lambda m, x: m.inner(x) * random.random(), inner=Classifier()).double()
    diagnosis, _ = diagnosed(model, F.cross_entropy, *BATCH)
    assert found(diagnosis) == ["numpy-draws at the model"]


def test_an_error_that_no_entry_covers_is_shown():
    def refusing(self: zoo.Apply, images: Tensor) -> Tensor:
        if torch._C._functorch.is_functorch_wrapped_tensor(images):
            raise RuntimeError("not under transforms")
        return self.inner(images)

    model = zoo.Apply(refusing, inner=Classifier()).double()
    (finding,) = diagnose(model, F.cross_entropy, *BATCH).findings
    assert (finding.entry, finding.where, finding.will) == ("unknown", "the model", "raises")
    assert finding.cause == "RuntimeError: not under transforms"


@pytest.mark.parametrize(
    "says", ["shared-layer at first.weight, left dead", "stashed-activation at logits, left dead"]
)
def test_a_model_that_a_transform_has_harmed_is_recognised(says):
    # The cell has run the bare composition.
    diagnosis = diagnose(*run(says.split()[0], 1).case(USUAL))
    assert found(diagnosis)[0].startswith(says)
    assert diagnosis.comparison is None


@pytest.mark.parametrize("batch_size", [1, 2, 50])
def test_it_runs_few_samples_few_times(batch_size):
    seen = []
    model = zoo.Apply(lambda m, x: seen.append(len(x)) or m.inner(x), inner=Classifier())
    data = torch.randn(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))
    assert found(diagnose(model, F.cross_entropy, *data)) == []
    assert max(seen) <= 4
    assert len(seen) <= 13


RIGHT = {"model": Classifier().double(), "loss_fn": F.cross_entropy}
RIGHT |= dict(zip(("data", "targets"), BATCH, strict=True))
# By what the message names, what differs from a right call.
REFUSED: dict[str, dict[str, object]] = {
    "model must be a torch.nn.Module, got str": {"model": "cnn"},
    "loss_fn must be a function, got NoneType": {"loss_fn": None},
    "a class, call it first: NLLLoss()": {"loss_fn": nn.NLLLoss},
    "must return a floating point number, got torch.int64": {
        "loss_fn": lambda z, y: (z.argmax(1) == y).sum()
    },
    "must be finite, got NaN or infinity": {"data": BATCH[0] * torch.nan},
    "data must be a tensor (B, ...), got list": {"data": [1]},
    "one batch size, got 8 and 3": {"targets": BATCH[1][:3]},
    "data must hold a sample at least": {"data": BATCH[0][:0], "targets": BATCH[1][:0]},
    "on 1 sample, without transforms, the model raised RuntimeError: ": {
        "data": BATCH[0][..., :20]
    },
    "without transforms, loss_fn raised AttributeError": {"loss_fn": lambda z, y: z.missing},
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_gets_one_sentence(words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)) as raised:
        diagnose(**(RIGHT | REFUSED[words]))
    assert "\n" not in str(raised.value)


def linear() -> nn.Module:
    return nn.Linear(3, 2).double()


def of_the_first(predictions: Tensor, targets: Tensor) -> Tensor:
    return -predictions.log_softmax(1)[0].dot(targets[0])


def slope(self: zoo.Apply, inputs: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(lambda x: self.fc(x).tanh().sum()))(inputs)


def under_autocast(self: zoo.Apply, inputs: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return self.head(self.fc(inputs.float()).tanh()).double()


def made_anew(self: zoo.Apply, inputs: Tensor) -> Tensor:
    self.scale = nn.Parameter(torch.ones(2, dtype=torch.float64))
    return self.fc(inputs) * self.scale


def penalised() -> tuple[nn.Module, Callable[..., Tensor]]:
    model = linear()
    return model, lambda p, t: F.mse_loss(p, t) + sum(map(torch.norm, model.parameters()))


def of_complex() -> nn.Module:
    weight = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128))
    return zoo.Apply(lambda m, x: (x.to(m.weight.dtype) @ m.weight).abs(), weight=weight)


# What makes a model, or a model and a loss, and what is found.
STRANGE = {
    "complex": (of_complex, []),
    "a loss of the first": (lambda: (linear(), of_the_first), []),
    "a derivative": (
        lambda: (zoo.Apply(slope, fc=linear()), lambda z, _: z.square().sum()),
        [],
    ),
    "a scripted part": (
        lambda: nn.Sequential(torch.jit.script(linear()), nn.Linear(2, 2).double()),
        [],
    ),
    "autocast": (
        lambda: zoo.Apply(under_autocast, fc=linear().float(), head=nn.Linear(2, 2)),
        [],
    ),
    "a penalty": (penalised, ["parameter-in-a-list at loss_fn (bias, weight)"]),
    "a class of parameters": (wild.typed, ["unknown at scale, fc.weight, fc.bias"]),
    "a parameter made in the forward": (
        lambda: zoo.Apply(made_anew, fc=linear()),
        ["state-on-self at scale"],
    ),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.filterwarnings("ignore")
def test_strange_models_are_named_or_clean_in_any_outer_mode(name, mode):
    build, expected = STRANGE[name]
    model, loss_fn = built if isinstance(built := build(), tuple) else (built, zoo.squared)
    data, targets = (torch.randn(4, size, dtype=torch.float64) for size in (3, 2))
    with mode():
        diagnosis, _ = diagnosed(model, loss_fn, data, targets)
    assert found(diagnosis) == expected
    assert diagnosis.comparison["equal"].all()
    assert all(each.will == "silently differs" for each in diagnosis.findings)
