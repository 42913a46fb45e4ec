"""The gallery: every entry does what it says, or says that it does something else here."""

import dataclasses
import functools
import warnings

import pytest
import torch

from helpers.data import load_batch
from helpers.gradients import loop_gradients
from helpers.limits import ENTRIES, changed, distances, find, index, show
from helpers.limits.bare import one_vector
from helpers.limits.entries import loud_values, silent_losses, slow
from helpers.limits.entry import SEEN_ON, Entry, Verdict, agree, run

IMAGES, LABELS = load_batch("digits", 8)
BATCH = IMAGES.double(), LABELS


def report_if_changed(entry: Entry) -> None:
    """Report an entry that another torch, or a CPU without oneDNN, made untrue; else do nothing."""
    other = not torch.__version__.startswith(f"{SEEN_ON}.") or not torch.backends.mkldnn.enabled
    other = other or not torch.backends.mkldnn.is_available()
    verdict = entry.check(*BATCH)
    if verdict.changed and other and not entry.lasting:
        changed = f"{entry.name}, on torch {torch.__version__}: {verdict.broken}; {verdict.fixed}"
        warnings.warn(f"changed: {changed}", stacklevel=2)
        pytest.xfail(changed)


@functools.cache
def checked(name: str) -> tuple[Verdict, list[str], bool]:
    """Check an entry once for all tests: its verdict, what it warned, and if it drew numbers."""
    state = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        verdict = ENTRIES[name].check(*BATCH)
    drew = not torch.equal(torch.get_rng_state(), state)
    return verdict, [str(each.message) for each in heard], drew


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_does_what_it_says(name):
    verdict, heard, drew = checked(name)
    if verdict.changed:
        report_if_changed(ENTRIES[name])
    assert not verdict.changed, verdict
    assert verdict.fixed.endswith(": True")
    assert not heard
    assert not drew


def test_distances_are_those_that_the_pages_tell():
    found = distances(*BATCH)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    said = {name: checked(name)[0].broken for name in ENTRIES}
    told = {name: text for name, text in said.items() if ", apart by " in text}
    assert set(found) == set(told)
    for name, share in found.items():
        assert told[name].endswith(f", apart by {share:.0%}")
        assert share > 1e-4


def test_an_entry_that_raises_has_no_distance(monkeypatch):
    def fail(images, labels):
        raise RuntimeError("silent no more")

    entry = dataclasses.replace(ENTRIES["class-weights"], broken=fail)
    monkeypatch.setitem(ENTRIES, entry.name, entry)
    assert entry.name not in distances(*BATCH)


# Loud entries whose way out computes what the loop computes for the failing case.
SAME_FUNCTION = [
    *("data-dependent-branch", "item", "numpy-or-list", "tensor-of-tensors", "boolean-mask"),
    *("dynamic-shape", "index-by-target", "one-hot", "packed-sequence", "in-place-into-zeros"),
    *("instancenorm-with-statistics", "sample-into-buffer", "recurrent-layer"),
    *("autograd-function", "autograd-function-without-vmap", "full-backward-hook"),
    "requires-grad-inside",
]


@pytest.mark.parametrize("name", SAME_FUNCTION)
def test_a_way_out_computes_what_the_failing_side_meant(name):
    report_if_changed(ENTRIES[name])
    meant = one_vector(loop_gradients(*ENTRIES[name].find_case(*BATCH)))
    assert meant.any()
    assert agree(run(ENTRIES[name].fixed, *BATCH), meant)


BRANCH, WEIGHTS = ENTRIES["data-dependent-branch"], ENTRIES["class-weights"]
FALLBACK, LEGACY = ENTRIES["operator-fallback"], ENTRIES["stale-copies"]
RAISES, ZEROS = "raises RuntimeError: vmap: It looks", lambda images, labels: torch.zeros(3)
LOUD = "the way out raises RuntimeError: vmap: It looks"
# What an entry is changed to, and what its verdict then says, of which side.
CHANGED: list[tuple[Entry, dict[str, object], str, str]] = [
    (BRANCH, {"broken": loud_values.branch_fixed}, "broken", "nothing is raised"),
    (BRANCH, {"broken": loud_values.numpy}, "broken", "raises RuntimeError: Cannot access data"),
    (BRANCH, {"fixed": loud_values.branch}, "fixed", LOUD),
    (BRANCH, {"error": ValueError}, "broken", RAISES),
    (BRANCH, {"symptom": "another message"}, "broken", RAISES),
    (WEIGHTS, {"broken": silent_losses.weighted_fixed}, "broken", "wrong norm"),
    (WEIGHTS, {"broken": loud_values.branch}, "broken", RAISES),
    (WEIGHTS, {"fixed": silent_losses.weighted}, "fixed", "equal to the truth: False"),
    (FALLBACK, {"broken": slow.operator_fixed}, "broken", "no warning, the values are right: True"),
    (FALLBACK, {"broken": loud_values.branch}, "broken", RAISES),
    (FALLBACK, {"fixed": slow.attention}, "fixed", "equal to the truth: False"),
    (FALLBACK, {"truth": ZEROS}, "broken", "the values are right: False"),
    (LEGACY, {"warns": ""}, "broken", "warns: "),
    (LEGACY, {"warns": "something else"}, "broken", "warns: "),
]


@pytest.mark.parametrize(("entry", "changes", "side", "says"), CHANGED, ids=lambda value: "")
def test_what_is_not_as_the_entry_says_is_reported_and_not_raised(entry, changes, side, says):
    verdict = dataclasses.replace(entry, **changes).check(*BATCH)
    assert verdict.changed
    assert says in getattr(verdict, side)


@pytest.mark.parametrize("so", [lambda *few: False, lambda *few: 1 / 0])
def test_a_sentence_that_does_not_hold_is_a_change(so):
    verdict = dataclasses.replace(BRANCH, also={"it rains": so}).check(*BATCH)
    assert verdict.changed
    assert verdict.also == (("it rains", False),)


def test_a_change_is_listed_and_shown(monkeypatch):
    assert changed(*BATCH, ["item", "class-weights"]) == []
    assert "**Changed.**" not in show("item", *BATCH)
    other = dataclasses.replace(ENTRIES["item"], broken=loud_values.item_fixed)
    monkeypatch.setitem(ENTRIES, "item", other)
    (sentence,) = changed(*BATCH, ["item", "class-weights"])
    assert sentence.startswith(f"item was seen on torch {SEEN_ON} on a CPU")
    assert f"**Changed.** {sentence}" in show("item", *BATCH)


def test_another_torch_is_reported_by_name_and_fails_nothing(monkeypatch):
    other = dataclasses.replace(ENTRIES["item"], broken=loud_values.item_fixed)
    monkeypatch.setattr(torch, "__version__", "99.0.0")
    with (
        pytest.warns(UserWarning, match="changed: item, on torch 99"),
        pytest.raises(pytest.xfail.Exception, match="nothing is raised"),
    ):
        report_if_changed(other)
    lasting = dataclasses.replace(WEIGHTS, broken=silent_losses.weighted_fixed)
    report_if_changed(lasting)  # mathematics has not changed: the test itself must fail


@pytest.mark.parametrize("name", ENTRIES)
def test_a_page_shows_the_code_that_ran_and_what_it_did(name):
    entry, page = ENTRIES[name], show(name, *BATCH)
    assert f"def {entry.broken.__name__}(" in page
    assert f"def {entry.fixed.__name__}(" in page
    verdict, *_ = checked(name)  # of another run, so an entry says the same twice
    assert verdict.broken in page.replace("Warns", "warns").replace("No warning", "no warning")
    assert verdict.fixed in page.replace("Equal to", "equal to")
    assert entry.cause in page
    assert entry.fix in page
    for sentence in entry.also:
        assert f"- {sentence}: True" in page
    assert str(page) == page._repr_markdown_()
    assert len(repr(page)) < 40


def test_code_brings_along_what_it_uses():
    """Of its module, and what it imports that the lesson does not."""
    broken, fixed = ENTRIES["means-of-unequal-units"].code
    assert broken.index("class _NextToken") < broken.index("def _texts")
    assert broken.index("def _texts") < broken.index("def unequal_units")
    assert "class _NextToken" in fixed
    broken, fixed = ENTRIES["checkpointing"].code
    assert broken.startswith("from torch.utils.checkpoint import checkpoint\n")
    assert "import" not in fixed
    assert broken.endswith("\nlimits.run(checkpointing, *few)")


@pytest.mark.parametrize("part", [None, "loud", "silent", "slow"])
def test_the_index_has_a_row_for_each_entry_of_a_part(part):
    rows = index(part).splitlines()[2:]
    entries = [entry for entry in ENTRIES.values() if part in (None, entry.part)]
    assert len(rows) == len(entries)
    for row, entry in zip(rows, entries, strict=True):
        assert row.startswith(f"| [{entry.name}](#{entry.name}) | ")
        assert entry.symptom in row
        assert row.count(" | ") == 3


def test_a_message_finds_its_entries():
    def found(text):
        return [row.split("]")[0][3:] for row in find(text).splitlines()[2:]]

    for name, entry in ENTRIES.items():
        assert name in found(entry.symptom), name
        assert name in found(f"RuntimeError: before {entry.symptom}\n and after"), name
    assert found("Tensor.item() was called: calling .item() on a Tensor, please") == ["item"]
    assert found("SPARSE_") == []
    assert "sparse-embedding" in found("Sparse=True")
    assert find("no such words") == "No entry of this page holds `no such words`."


def test_backticks_in_a_message_do_not_end_its_code():
    for text in (index("loud"), show("compiled-names", *BATCH)):
        assert "``AttributeError: ...has no attribute `_orig_mod`...``" in text


def test_an_unknown_entry_is_refused_with_the_names():
    with pytest.raises(ValueError, match=r"no entry 'items': there are data-dependent-branch"):
        show("items", *BATCH)
