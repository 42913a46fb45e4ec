"""The self-check: it names the cause, stays quiet on what is clean, and leaves no trace."""

import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.limits import diagnose, entries
from tests.support import wild, zoo
from tests.support.lesson_06 import NAMES, as_seen, run, top
from tests.support.oracle import assert_equal
from tests.support.snapshot import Snapshot
from tests.test_matrix import CASES, prepare, truth_of

BATCH = top()["images"], top()["labels"]
Classifier, bare_gradients = top()["Classifier"], top()["bare_gradients"]

IN_THE_CALL = {
    "captured-buffer",
    "missing-batch-dimension",
    "default-in-dims",
    "tied-names",
    "mixed-modes",
    "wrong-loss-reduction",
    "batchnorm-in-a-loop",
    "misspelled-name",
    "shared-targets",
    "keyword-arguments",
    "attached-parameters",
    "tied-weights-apart",
    "stale-copies",
    "mode-that-does-not-arrive",
    "chunks-concatenated",
    "grouped-convolution",
    "compiled-names",
    "prelu-in-jacobians",
}
IN_THE_CALL |= {
    "forward-mode-attention",
    "forward-mode-lstm",
    "forward-mode-operator",
    "stacked-inside",
    "compiled-inside",
    "graph-for-each-batch-size",
    "autograd-grad-under-vmap",
    "requires-grad-is-false",
    "cond-under-grad",
    "recurrent-rule",
    "export-of-gradients",
    "padding-without-a-mask",
    "sample-not-finite",
    "opacus-not-initialized",
    "opacus-gradients-not-cleared",
    "opacus-wrapper",
    "diagonal-of-the-hessian",
}
IN_THE_CALL |= {"numpy-of-a-result"}  # its model does not run without transforms either
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
# What else is true of an entry's case.
ALSO = {
    "item": ["samples-that-meet"],
    "numpy-or-list": ["samples-that-meet"],
    "tensor-of-tensors": ["samples-that-meet"],
    "dynamic-shape": ["samples-that-meet"],
    "sample-into-buffer": ["samples-that-meet"],
    "replaced-batchnorm": ["samples-that-meet"],
}
RECURRENT = [name for name in zoo.SEQUENCES if name.split()[0] in ("lstm", "gru", "rnn")]
ATTENTION = ["encoder train", "encoder eval", "encoder norm first"]
INTO_BUFFER = ["in place", "copied into", "indexed", "not persistent"]
# By case, the entries that are found, and where.
FOUND = {
    "bilinear": [("operator-fallback", "b (_trilinear)")],
    "shared layer": [("shared-layer", "first, second")],
    "frozen": [("frozen-parameters", "0.weight, 2.bias")],
    "unused": [("no-gradient", "z.weight, z.bias")],
    "no_grad inside": [("no-gradient", "a.weight, a.bias")],
    "buffer counts": [("aliased-buffers", "seen, calls")],
    **{
        f"buffer {how}": [("sample-into-buffer", "the model"), ("samples-that-meet", "fc")]
        for how in INTO_BUFFER
    },
    "buffer rebound": [("rebound-buffers", "seen, calls"), ("samples-that-meet", "fc")],
    "stash": [("stashed-activation", "activation")],
    "weight norm hook": [("stashed-activation", "weight")],
    "spectral norm hook": [
        ("aliased-buffers", "weight_u, weight_v"),
        ("stashed-activation", "weight"),
    ],
    "spectral norm": [
        ("aliased-buffers", "parametrizations.weight.0._u, parametrizations.weight.0._v")
    ],
    "embedding bag": [("operator-fallback", "the model (_embedding_bag)")],
    **{
        name: [("recurrent-layer", "cell" if name.endswith("cell") else "layer")]
        for name in RECURRENT
    },
    **{name: [("fused-attention", "self_attn")] for name in ATTENTION},
    "instance norm tracking": [("instancenorm-with-statistics", "1")],
    "wild: kept in a dictionary": [("stashed-activation", "cache")],
    "wild: kept in a list": [("stashed-activation", "cache")],
    "wild: kept deep inside": [("state-on-self", "cache")],
    "wild: kept in an object": [("state-on-self", "cache")],
    "wild: kept in a tensor": [("captured-buffer", "the model"), ("state-on-self", "cache")],
    "wild: kept on a layer": [("state-on-self", "fc.scale")],
    "wild: hooks on first use": [("stashed-activation", "seen")],
    "wild: wrapped by a timer": [("wrapped-forward", "bias, weight"), ("state-on-self", "seconds")],
    "wild: wrapped inside": [
        ("wrapped-forward", "0.bias, 0.weight"),
        ("state-on-self", "0.seconds"),
    ],
    "wild: wrapped by compile": [("wrapped-forward", "bias, weight")],
    "wild: hook over another layer": [("wrapped-forward", "2.bias, 2.weight")],
    "wild: parameters in a list": [("parameter-in-a-list", "extra, shift")],
    "wild: parameters in an object": [("parameter-in-a-list", "fc.bias, fc.weight")],
    "wild: parameter in a closure": [("wrapped-forward", "fc.weight")],
    "wild: closure into a function": [("wrapped-forward", "fc.weight")],
    "wild: closure into an old function": [
        ("autograd-function", "the model"),
        ("wrapped-forward", "fc.weight"),
    ],
    "wild: closure into a function, later": [
        ("data-dependent-branch", "the model"),
        ("samples-that-meet", "the model"),
        ("wrapped-forward", "fc.weight"),
    ],
    "wild: closure into a checkpoint": [
        ("requires-grad-inside", "the model"),
        ("no-gradient", "0.weight, 0.bias"),
        ("wrapped-forward", "0.bias, 0.weight, 2.bias and 1 more"),
    ],
    "wild: channels last": [("memory-format", "the model")],
    "wild: channels last, instance norm": [("memory-format", "the model")],
    "wild: channels last, group norm": [("memory-format", "the model")],
    "wild: tokens as images": [("normalisation-of-tokens", "norm")],
    "wild: max norm": [("written-weights", "table.weight")],
    "wild: weight clamped": [("written-weights", "fc.weight")],
    "wild: weight halved": [("written-weights", "fc.weight")],
    "wild: frozen weight halved": [
        ("captured-buffer", "the model"),
        ("frozen-parameters", "fc.weight"),
        ("written-weights", "fc.weight"),
    ],
    "wild: checkpoint": [("checkpointing", "the model")],
    "wild: checkpoint reentrant": [("autograd-function", "the model")],
    "wild: scripted": [("scripted-module", "the model")],
    "wild: data parallel": [("data-parallel", "the model")],
    "wild: item": [("item", "the model")],
    "wild: recurrence in place": [("copy-into-zeros", "the model")],
    "wild: sparse buffer": [("operator-fallback", "the model (_sparse_addmm)")],
    "wild: old function": [("autograd-function", "the model")],
    "wild: quantisation observer": [
        ("sample-into-buffer", "1.activation_post_process"),
        ("data-dependent-branch", "1"),
        ("samples-that-meet", "1"),
    ],
    "wild: padding looked for": [("data-dependent-branch", "the model")],
    "wild: padding looked for, eval": [("data-dependent-branch", "the model")],
    "wild: key padding mask, eval": [("nested-tensors", "encoder")],
    "wild: stem batch norm": [("normalisation-transposed", "norm")],
    "wild: stem batch norm 3d": [("normalisation-transposed", "norm")],
    "wild: stem instance norm": [("normalisation-transposed", "norm")],
    "wild: stem instance norm tracking": [("normalisation-transposed", "norm")],
    "wild: stem by function": [("normalisation-transposed", "the model")],
}


def found(diagnosis: object) -> list[tuple[str, str]]:
    return [(finding.entry, finding.where) for finding in diagnosis.findings]


@as_seen
@pytest.mark.parametrize("name", [name for name in NAMES if name not in IN_THE_CALL])
def test_it_names_the_cause_of_every_entry(name):
    case = run(name, 1).case(WRONG.get(name, USUAL))
    before, streams = Snapshot(*case), random_streams()
    diagnosis = diagnose(*case)
    assert before.changes() == []
    assert random_streams() == streams
    assert [finding.entry for finding in diagnosis.findings] == [name, *ALSO.get(name, [])]
    assert diagnosis.findings[0].fix == entries()[name].fix


# torch's own: of a checkpoint whose first layer needs no gradient, and of nested tensors.
TORCH_WARNS = "wild: checkpoint reentrant", "wild: key padding mask, eval"
# What the bare composition is right for all the same: it is slow, or what is said holds for a copy,
# for a batch of one, or for gradients that are zero or not wanted.
RIGHT_ALL_THE_SAME = {
    "bilinear",
    "frozen",
    "unused",
    "no_grad inside",
    "buffer rebound",
    "embedding bag",
    *ATTENTION,
    "wild: wrapped by compile",
    "wild: hook over another layer",
    "wild: sparse buffer",
    *(f"wild: stem {kind}" for kind in ("batch norm", "batch norm 3d", "instance norm")),
    "wild: stem instance norm tracking",
    "wild: stem by function",
    "wild: tokens as images",
}
LINKED = [f"wild: {name}" for name in wild.LINKED]
DIAGNOSED = [name for name in CASES if name not in (*zoo.RECURRENCES, *LINKED)]


@pytest.mark.parametrize("name", [*DIAGNOSED, *LINKED])
def test_a_case_is_named_or_clean_and_left_as_it_was(name):
    case = CASES[name]()
    before, streams = prepare(case), random_streams()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        diagnosis = diagnose(*case.args)
    assert name in LINKED or found(diagnosis) == FOUND.get(name, [])
    assert all(finding.cause and finding.fix for finding in diagnosis.findings)
    assert name == "wild: scripted" or diagnosis.comparison["equal"].all()
    assert before.changes() == []
    assert random_streams() == streams
    assert name in TORCH_WARNS or not heard


def random_streams() -> tuple[object, ...]:
    of_numpy = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), of_numpy[1].tobytes(), of_numpy[2], random.getstate()


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


# Ways out whose model is right when it is called in another way, or falls back.
WITH_A_CALL = ["aliased-buffers", "numpy-draws", "normalisation-of-tokens", "nested-tensors"]


@as_seen
@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*IN_THE_CALL, *WITH_A_CALL)])
def test_a_way_out_is_clean(name):
    done, case = run(name), WRONG.get(name, USUAL)
    if not case.startswith("broken") or not isinstance(done.names.get("mended"), nn.Module):
        return  # another call or another loss
    assert found(diagnose(*done.case(case.replace("broken", "mended")))) == []


def test_several_causes_are_named_at_once_loud_ones_first():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)
            self.norms = nn.ModuleList([nn.BatchNorm2d(2) for _ in range(5)])
            self.gru = nn.GRU(26, 4, batch_first=True)
            self.drop = nn.Dropout(0.5)
            self.fc = nn.Linear(4, 10)
            self.fc.weight.requires_grad_(False)

        def forward(self, images):
            x = self.conv(images)
            for norm in self.norms:
                x = norm(x)
            x = self.drop(self.gru(x[:, 0])[0][:, -1])
            return self.fc(x) * float(x.detach().abs().max())

    model = Model().double()
    assert found(diagnose(model, F.cross_entropy, *BATCH)) == [
        ("batchnorm-in-training", "norms.0, norms.1, norms.2 and 2 more"),
        ("recurrent-layer", "gru"),
        ("random-draws", "drop"),
        ("item", "the model"),
        ("frozen-parameters", "fc.weight"),
    ]


def test_what_training_refuses_is_compared_in_evaluation():
    model = nn.Sequential(Classifier(), nn.Dropout(0.5)).double()
    diagnosis = diagnose(model, F.cross_entropy, *BATCH)
    assert found(diagnosis) == [("random-draws", "1")]
    assert diagnosis.conclusion.startswith("func_gradients refuses: the model draws random numbers")
    assert diagnosis.conclusion.endswith(
        "in evaluation mode, func_gradients is equal for all 2 parameters, on 4 samples"
    )
    assert diagnosis.comparison["equal"].all()


def test_a_difference_is_said():
    case = run("numpy-draws", 1).case(USUAL)
    assert diagnose(*case).conclusion == (
        "func_gradients and the loop differ in weight, bias, on 4 samples"
    )


def test_draws_of_python_are_found_and_given_back():
    class Model(Classifier):
        def forward(self, images):
            return super().forward(images) * random.random()

    before = random.getstate()
    assert found(diagnose(Model().double(), F.cross_entropy, *BATCH)) == [
        ("numpy-draws", "the model")
    ]
    assert random.getstate() == before


def test_an_error_that_no_entry_covers_is_shown():
    class Refusing(Classifier):
        def forward(self, images):
            if torch._C._functorch.is_functorch_wrapped_tensor(images):
                raise RuntimeError("not under transforms")
            return super().forward(images)

    diagnosis = diagnose(Refusing().double(), F.cross_entropy, *BATCH)
    (finding,) = diagnosis.findings
    assert (finding.entry, finding.where, finding.will) == ("unknown", "the model", "raises")
    assert finding.cause == "RuntimeError: not under transforms"


@pytest.mark.parametrize(
    ("where", "entry"),
    [
        ("first.weight, left dead", "shared-layer"),
        ("logits, left dead", "stashed-activation"),
    ],
)
def test_a_model_that_a_transform_has_harmed_is_recognised(where, entry):
    diagnosis = diagnose(*run(entry, 1).case(USUAL))  # the cell has run the bare composition
    assert where in found(diagnosis)[0][1]
    assert found(diagnosis)[0][0] == entry
    assert diagnosis.comparison is None


def test_wrappers_are_named_and_taken_off():
    compiled = torch.compile(Classifier().double(), backend="eager")
    diagnosis = diagnose(nn.DataParallel(compiled), F.cross_entropy, *BATCH)
    assert found(diagnosis) == [("data-parallel", "the model")]
    assert diagnosis.comparison["equal"].all()


def test_float32_lstm_falls_back():
    diagnosis = diagnose(*zoo.make("lstm", 4).to(torch.float32).args)
    assert found(diagnosis) in ([("lstm-fallback", "layer")], [("recurrent-layer", "layer")])


@pytest.mark.parametrize("batch_size", [1, 2, 50])
def test_it_runs_few_samples_few_times(batch_size):
    seen = []

    class Model(Classifier):
        def forward(self, images):
            seen.append(len(images))
            return super().forward(images)

    data = torch.randn(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))
    assert found(diagnose(Model(), F.cross_entropy, *data)) == []
    assert max(seen) <= 4
    assert len(seen) <= 13


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_under_outer_modes(mode):
    case = zoo.make("linear", 4)
    with mode():
        assert found(diagnose(*case.args)) == []


def test_both_forms_of_the_result_name_all_findings():
    diagnosis = diagnose(*run("frozen-parameters", 1).case(USUAL))
    table = diagnosis.table()
    assert list(table.columns) == ["where", "will", "entry", "cause", "way out"]
    assert list(table["entry"]) == ["frozen-parameters"]
    for text in (str(diagnosis), diagnosis._repr_markdown_()):
        assert "frozen-parameters" in text
        assert "silently differs" in text
        assert "func_gradients is equal" in text


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"model": "cnn"}, TypeError, "model must be a torch.nn.Module, got str"),
        ({"loss_fn": None}, TypeError, "loss_fn must be a function, got NoneType"),
        ({"loss_fn": torch.nn.NLLLoss}, TypeError, r"a class, call it first: NLLLoss\(\)"),
        (
            {"loss_fn": lambda z, y: (z.argmax(1) == y).sum()},
            ValueError,
            "must return a floating point number, got torch.int64: a count has no gradient",
        ),
        ({"data": BATCH[0] * torch.nan}, ValueError, "must be finite, got NaN or infinity"),
        ({"data": [1]}, TypeError, r"data must be a tensor \(B, ...\), got list"),
        ({"targets": BATCH[1][:3]}, ValueError, "one batch size, got 8 and 3"),
        (
            {"data": BATCH[0][:0], "targets": BATCH[1][:0]},
            ValueError,
            "data must hold a sample at least, got an empty batch",
        ),
        (
            {"data": BATCH[0][..., :20]},
            ValueError,
            "on 1 sample, without transforms, the model raised RuntimeError: mat1 and mat2",
        ),
        (
            {"loss_fn": lambda z, y: z.missing},
            ValueError,
            "without transforms, loss_fn raised AttributeError",
        ),
    ],
)
def test_bad_input_gets_one_sentence(arguments, error, sentence):
    names = ("model", "loss_fn", "data", "targets")
    right = dict(zip(names, (Classifier().double(), F.cross_entropy, *BATCH), strict=True))
    with pytest.raises(error, match=sentence) as raised:
        diagnose(**(right | arguments))
    assert "\n" not in str(raised.value)


def test_nothing_to_compare_is_said():
    frozen = Classifier().double().requires_grad_(False)
    conclusion = diagnose(frozen, F.cross_entropy, *BATCH).conclusion
    assert conclusion == "no parameter requires a gradient, so there is nothing to compare"


def own_derivative(self: zoo.Apply, inputs: Tensor) -> Tensor:
    """Return a field that is the derivative of a potential."""
    return torch.func.vmap(torch.func.grad(lambda x: self.fc(x).tanh().sum()))(inputs)


def of_the_first(predictions: Tensor, targets: Tensor) -> Tensor:
    return -predictions.log_softmax(1)[0].dot(targets[0])


def of_one(predictions: Tensor, targets: Tensor) -> Tensor:
    return (predictions.squeeze(0) * targets.squeeze(0)[:, None].T[0]).sum().sin()


@pytest.mark.parametrize("name", ["derivative", "loss of the first", "loss of one"])
def test_what_only_looks_suspicious_is_clean(name):
    case = zoo.make("linear", 4)
    model, loss_fn = case.model, case.loss_fn
    if name == "derivative":
        model = zoo.Apply(own_derivative, fc=nn.Linear(3, 2)).double()
        case.targets = torch.randn(4, 3, dtype=torch.float64)
    else:
        loss_fn = of_the_first if name.endswith("first") else of_one
    assert found(diagnose(model, loss_fn, case.data, case.targets)) == []
