"""Both gradient computers against an oracle of its own, and each fault that others have."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from helpers import benchmark
from helpers.gradient_computers import (
    AbstractGradientComputer,
    FunctionalGradientComputer,
    IterativeGradientComputer,
)
from helpers.model_outputs import ImageClassificationModelOutput
from helpers.models import MLP, SimpleCNN
from tests.support.oracle import TOLERANCE, assert_equal, oracle, refused
from tests.support.ways import LossOf
from tests.support.ways import computer as of_case
from tests.support.zoo import make

pytestmark = pytest.mark.filterwarnings("ignore:.*which torch.vmap takes one sample")
KINDS = {"functional": FunctionalGradientComputer, "iterative": IterativeGradientComputer}
both = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
IMAGES = ImageClassificationModelOutput()


def computer(kind: type, model: nn.Module, dtype: torch.dtype, **options: object):
    count = 0
    for name, parameter in model.named_parameters():
        if options.get("grad_wrt") is None or name in options["grad_wrt"]:
            count += parameter.numel()
    return kind(model, IMAGES, count, dtype, "cpu", **options)


@both
def test_grad_wrt_gives_these_names_in_its_order_from_any_iterable(kind):
    case, wrt = make("frozen"), ["2.bias", "0.weight"]
    count = sum(case.model.get_parameter(name).numel() for name in wrt)
    taken = kind(case.model, LossOf(case.loss_fn), count, torch.float64, "cpu", iter(wrt))
    for _ in range(2):  # an iterator is read once
        got = taken.compute_per_sample_grad(case.batch)
        assert list(got) == wrt
        assert_equal(got, case.pass_to(oracle, wrt=wrt), TOLERANCE)


@both
def test_what_is_not_wanted_is_not_differentiated(kind):
    model, batch = SimpleCNN(), (torch.rand(4, 1, 28, 28), torch.arange(4))

    def cost(grad_wrt: list[str] | None) -> tuple[int, int]:
        taken = computer(kind, model, torch.float32, grad_wrt=grad_wrt)

        def run() -> object:
            return taken.compute_per_sample_grad(batch)

        return benchmark.flops(run), benchmark.memory(run).peak

    forward = benchmark.flops(lambda: model(batch[0]))
    flops_of_all, bytes_of_all = cost(None)
    flops_of_last, bytes_of_last = cost(["fc2.weight", "fc2.bias"])
    assert flops_of_last < 1.01 * forward
    assert flops_of_all > 2.5 * forward
    # One copy of all weights stands in for the model's, beside one gradient of the batch of 4.
    assert bytes_of_last < bytes_of_all / 4


@both
def test_results_have_the_dtype_and_the_device_that_were_asked_for(kind):
    model, batch, dtype = MLP(), (torch.rand(3, 784), torch.arange(3)), torch.bfloat16
    exact = computer(kind, model, torch.float64).compute_per_sample_grad(batch)
    taken = computer(kind, model, dtype)
    for name, tensor in taken.compute_per_sample_grad(batch).items():
        assert torch.equal(tensor, exact[name].to(dtype))
    assert taken.compute_loss_grad(batch).dtype == dtype


@both
def test_new_weights_are_seen_at_once_and_another_model_by_loading_it(kind):
    case, other = make("mlp"), make("mlp")
    taken = of_case(kind, case)
    with torch.no_grad():
        case.model.fc1.weight.mul_(1.5)
        other.model.fc1.weight.mul_(2)
    got = taken.compute_per_sample_grad(case.batch)
    assert_equal(got, case.pass_to(oracle), TOLERANCE)
    taken.load_model_params(other.model)
    got = taken.compute_per_sample_grad(case.batch)
    assert_equal(got, other.pass_to(oracle), TOLERANCE)


def make_one(kind, **changes: object) -> AbstractGradientComputer:
    arguments = {
        "model": nn.Linear(3, 2),
        "task": IMAGES,
        "grad_dim": 8,
        "dtype": torch.float32,
        "device": "cpu",
    }
    return kind(**(arguments | changes))


SETTINGS: dict[str, dict[str, object]] = {
    "wieght": {"grad_wrt": ["wieght"]},
    "8 entries": {"grad_dim": 9},
    "6 entries": {"model": nn.Linear(3, 2).requires_grad_(False), "grad_wrt": ["weight"]},
    "complex": {"model": nn.Linear(3, 2, dtype=torch.complex64)},
    "cuda:99": {"device": "cuda:99"},
    "several names": {"grad_wrt": "bias"},
    "get_output": {"task": "images"},
}


@pytest.mark.parametrize("word", SETTINGS)
def test_wrong_settings_are_refused(word):
    with refused(word, error=(TypeError, ValueError)):
        make_one(FunctionalGradientComputer, **SETTINGS[word])


X, Y = torch.ones(3, 3), torch.zeros(3, dtype=torch.long)
BATCHES = {"got 1": (X,), "got Tensor": X, "one batch size": (X, Y[:2])}


@both
@pytest.mark.parametrize("word", BATCHES)
def test_a_wrong_batch_is_refused(word, kind):
    with refused(word, error=(TypeError, ValueError)):
        make_one(kind).compute_per_sample_grad(BATCHES[word])


def task(output: object = None, loss_grad: object = None) -> SimpleNamespace:
    """Make a task that takes any number of tensors."""

    def get_output(model, weights, buffers, first, *rest) -> Tensor:
        return output(functional_call(model, (weights, buffers), (first[None],)))

    def get_out_to_loss_grad(model, weights, buffers, batch) -> Tensor:
        return loss_grad(batch)

    return SimpleNamespace(get_output=get_output, get_out_to_loss_grad=get_out_to_loss_grad)


@both
def test_a_task_of_any_number_of_tensors_must_return_one_number(kind):
    taken = make_one(kind, task=task(lambda out: out.sum()))
    for count in (1, 2, 3):
        got = taken.compute_per_sample_grad([X] * count)
        assert torch.equal(got["weight"], torch.ones(3, 2, 3))
    with refused("scalar"):
        make_one(kind, task=task(lambda out: out)).compute_per_sample_grad((X,))
    with refused("(B, 1)"):
        make_one(kind, task=task(None, lambda batch: batch[0])).compute_loss_grad((X,))


@both
@pytest.mark.parametrize("layer", [nn.BatchNorm1d(2), nn.Dropout()], ids=str)
def test_a_layer_in_training_mode_is_refused(layer, kind):
    model = nn.Sequential(nn.Linear(3, 2), layer).train()
    taken = computer(kind, model, torch.float32)
    for compute in (taken.compute_per_sample_grad, taken.compute_loss_grad):
        with refused("eval()"):
            compute((X, Y))
