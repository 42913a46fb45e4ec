"""Batches that are trees of tensors, in every helper: as for the same numbers in one tensor."""

from collections import ChainMap, OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from helpers import gradients, jacobians, kernels, limits, norms
from helpers.features import Job, job
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from helpers.noise import noise_scale
from helpers.privacy import private_sum
from helpers.projection import project_batches
from tests.support.oracle import METHODS, TOLERANCE, Truth, assert_equal, refused
from tests.support.ways import WAYS, LossOf
from tests.support.zoo import Case

SIZE, SCALE = 4, 1.5
torch.manual_seed(0)
X, IDS = torch.randn(SIZE, 3, dtype=torch.float64), torch.randint(5, (SIZE, 2))
LABELS = torch.randint(2, (SIZE,))
Pair = namedtuple("Pair", "x ids")


@dataclass(frozen=True)
class Sample:
    x: Tensor
    rest: object


class Attributes(dict):
    def __init__(self, items) -> None:
        super().__init__(items)
        self.__dict__ = self


class Two(list):
    def __init__(self, x, ids) -> None:
        super().__init__([x, ids])


class Couple(tuple):
    __slots__ = ()

    def __new__(cls, x, ids):
        return super().__new__(cls, (x, ids))


class Keeping(ChainMap):
    def __copy__(self):
        return Keeping(*self.maps)


class Net(nn.Module):
    writes = True  # into its inputs

    def __init__(self, pick) -> None:
        super().__init__()
        self.pick, self.fc, self.embed = pick, nn.Linear(3, 2), nn.Embedding(5, 3)

    def forward(self, *args, **kwargs):
        x, ids, scale = self.pick(*args, **kwargs)
        words = self.embed(ids).mean(1)
        x = x.add_(words) if self.writes else x + words
        return self.fc(x).sin() * scale


# What is handed in, and where the network finds it there.
FORMS = {
    "dictionary": ({"ids": IDS, "x": X, "scale": SCALE}, lambda x, ids, scale: (x, ids, scale)),
    "mapping": (Keeping({"x": X, "ids": IDS}), lambda x, ids: (x, ids, SCALE)),
    "BatchEncoding": (UserDict(x=X, ids=IDS, no=None), lambda x, ids, no: (x, ids, SCALE)),
    "tuple": ((X, IDS, torch.tensor(SCALE)), lambda x, ids, s: (x, ids, s.add_(1) - 1)),
    "named tuple": (Pair(X, IDS), lambda x, ids: (x, ids, SCALE)),
    "list": ([X, IDS, [SCALE, "a"]], lambda batch: (*batch[:2], batch[2][0])),
    "list of its own class": (Two(X, IDS), lambda batch: (*batch, SCALE)),
    "dataclass": (Sample(X, {"ids": IDS}), lambda batch: (batch.x, batch.rest["ids"], SCALE)),
    "dataclass of a number": (
        (Sample(X, torch.tensor(SCALE)), IDS),
        lambda batch, ids: (batch.x, ids, batch.rest),
    ),
    "nested": (
        {"a": [Pair(X, (IDS, "text"))], "b": {"size": (2, 3), 0: UserDict(x=X)}},
        lambda a, b: (a[0].x / 2 + b[0]["x"] / 2, a[0].ids[0], SCALE),
    ),
}
FLAT = torch.cat([X, IDS], 1)


def make(name: str) -> Case:
    torch.manual_seed(1)
    data, pick = FORMS[name]
    return Case(Net(pick).double(), data, LABELS, F.cross_entropy)


def in_one_tensor() -> Case:
    torch.manual_seed(1)
    model = Net(lambda both: (both[:, :3], both[:, 3:].long(), SCALE)).double()
    model.writes = False
    return Case(model, FLAT, LABELS, F.cross_entropy)


TRUTH = Truth(in_one_tensor)
OF_FORMS = {name: way for name, way in WAYS.items() if "computer" not in name}


def kernel_of_two(case, truth):
    return {"": kernels.ntk(case.model, case.data, case.data, chunk_size=3)}


OF_FORMS["kernel of two"] = replace(WAYS["kernel"], compute=kernel_of_two)


@pytest.mark.parametrize("name", FORMS)
def test_every_way_is_what_it_is_for_one_tensor(name):
    for way in OF_FORMS.values():
        assert_equal(way.compute(make(name), TRUTH), way.expected(TRUTH), TOLERANCE)
        assert torch.equal(torch.cat([X, IDS], 1), FLAT), "the data are as they were"
    assert "equal for all 3" in make(name).pass_to(limits.diagnose).conclusion


class Labelled(Net):
    writes = False

    def forward(self, labels, **inputs):
        logits = super().forward(**inputs)
        return OrderedDict(loss=F.cross_entropy(logits, labels), logits=logits)


def test_labels_in_the_batch_and_no_targets():
    torch.manual_seed(1)
    model = Labelled(lambda x, ids: (x, ids, SCALE)).double()
    batch = UserDict(x=X, ids=IDS, labels=LABELS)

    def loss_fn(outputs, _):
        return outputs["loss"]

    for method in METHODS.values():
        assert_equal(method(model, loss_fn, batch), TRUTH.gradients, TOLERANCE)
    torch.testing.assert_close(norms.gradient_norms(model, loss_fn, batch), TRUTH.norms)
    limit = TRUTH.limit
    clipped = norms.clipped_sum(model, loss_fn, batch, limit=limit)
    assert_equal(clipped, TRUTH.clipped_sum, TOLERANCE)
    private = private_sum(model, loss_fn, batch, limit=limit, noise_multiplier=0.0)
    assert_equal(private, TRUTH.clipped_sum, TOLERANCE)
    expected = in_one_tensor().pass_to(noise_scale)
    assert noise_scale(model, loss_fn, batch) == expected


class LossOfTree(LossOf):
    def get_output(self, model, weights, buffers, sample):
        sample = {name: each[None] for name, each in sample.items()}
        return functional_call(model, (weights, buffers), (), sample)["loss"]

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        return functional_call(model, (weights, buffers), (), dict(batch))["logits"][:, :1]


def test_computers_projections_and_jobs_take_a_mapping():
    torch.manual_seed(1)
    model = Labelled(lambda x, ids: (x, ids, SCALE)).double()
    samples, renamed = [], []
    for i in range(SIZE):
        label = LABELS[i].item()
        samples.append({"x": X[i], "ids": IDS[i], "labels": label})
        renamed.append({"y": X[i], "ids": IDS[i], "labels": label})
    batch = job.collate(samples)
    features = []
    for kind in (FunctionalGradientComputer, IterativeGradientComputer):
        computer = kind(model, LossOfTree(None), 23, torch.float64, "cpu")
        assert_equal(computer.compute_per_sample_grad(batch), TRUTH.gradients, TOLERANCE)
        torch.testing.assert_close(computer.compute_loss_grad(batch), TRUTH.outputs[:, :1])
        features.append(project_batches(computer, [batch, batch], 4, kind="factored"))
    torch.testing.assert_close(features[0], features[1])
    plan = job.make_plan(Job(computer, samples))
    other = job.make_plan(Job(computer, renamed))
    assert plan["data"] != other["data"], "the places in the tree count"


def test_two_batches_of_a_kernel_have_their_own_constants():
    model = make("dictionary").model
    one = {"ids": IDS, "x": X, "scale": 1.0}
    other = {"ids": IDS, "x": X, "scale": 3.0}
    of_one = jacobians.loop_jacobians(model, one)
    of_other = jacobians.loop_jacobians(model, other)
    expected = torch.einsum("iap,jbp->ijab", of_one, of_other)
    torch.testing.assert_close(kernels.ntk(model, one, other), expected)


def test_an_empty_batch_of_a_tree():
    case = make("dictionary")
    case.data = {"x": X[:0], "ids": IDS[:0], "scale": SCALE}
    case.targets = LABELS[:0]
    expected = {name: rows[:0] for name, rows in TRUTH.gradients.items()}
    for method in METHODS.values():
        assert_equal(case.pass_to(method), expected, 0)
    assert jacobians.func_jacobians(case.model, case.data).shape == (0, 2, 23)


CIRCLE = {"x": X}
CIRCLE["again"] = CIRCLE
REFUSED = {
    "got a cyclic one": CIRCLE,
    "not be a Couple": Couple(X, IDS),
    "meta device": X.to("meta"),
    'data["x"] and data["mask"]': {"x": X, "mask": X[:3]},
    "data[0] and data[1].rest[0]": (X, Sample(X, [X[:1]])),
    "data[0] and targets": [X[:3]],
    'data["n"] must be a tensor (B, ...), got list of 4': {"x": X, "n": [1, 2, 3, 4]},
    'data["n"] must be a tensor (B, ...), got ndarray': {"x": X, "n": np.ones(4)},
    "data[0].rest must be a tensor (B, ...)": [Sample(X, SimpleNamespace())],
    "data[0] must not be a Attributes": (Attributes({"x": X}),),
    'data["n"] must be a tensor (B, ...), got list': {"x": X, "n": list(torch.zeros(4))},
    "data must be a tensor (B, ...), got dict": {"scale": SCALE},
    "data must be a tensor (B, ...), got NoneType": None,
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_wrong_tree_is_refused_by_its_path(words):
    # A wrong size or device is a wrong value; the others are wrong types.
    error = ValueError if " and " in words or "meta" in words else TypeError
    for method in METHODS.values():
        with refused(words, error=error):
            method(nn.Linear(3, 2), F.cross_entropy, REFUSED[words], LABELS)


def test_bags_in_a_mapping_stay_as_they_were():
    bags = Keeping({"input": torch.tensor([1, 2, 1]), "offsets": torch.tensor([0, 2])})
    gradients.loop_gradients(nn.EmbeddingBag(5, 2, mode="sum"), lambda out, _: out.sum(), bags)
    assert isinstance(bags["offsets"], Tensor)
