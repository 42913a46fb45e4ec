"""Silent entries: the call is taken, and means something else."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from helpers import legacy
from helpers.benchmark import memory
from helpers.gradients import loop_gradients
from helpers.limits.bare import Classifier
from helpers.limits.entry import Silent


def misspelled(images: Tensor, labels: Tensor) -> Tensor:
    model = Classifier().to(images)
    zeros = {"wieght": torch.zeros_like(model.weight)}
    return functional_call(model, zeros, (images,)).std()


def misspelled_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = Classifier().to(images)
    zeros = {"weight": torch.zeros_like(model.weight), "bias": torch.zeros_like(model.bias)}
    return functional_call(model, zeros, (images,), strict=True).std()


def _prepare(images: Tensor, labels: Tensor) -> tuple:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 1)).to(images)

    def compute_loss(params, sample, target):
        prediction = functional_call(model, params, (sample.unsqueeze(0),))
        return (prediction - target).square().mean()

    params = {name: p.detach() for name, p in model.named_parameters()}
    return compute_loss, params, labels.to(images)


def shared_targets(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    compute_loss, params, targets = _prepare(images, labels)  # a squared error
    return vmap(grad(compute_loss), in_dims=(None, 0, None))(params, images, targets)


def sliced_targets(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    compute_loss, params, targets = _prepare(images, labels)
    return vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, images, targets)


def keyword(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    compute_loss, params, targets = _prepare(images, labels)  # a squared error
    return vmap(grad(compute_loss), in_dims=(None, 0))(params, images, target=targets)


def _regression_truth(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 1)).to(images)
    return loop_gradients(model, lambda z, t: (z - t).square().mean(), images, labels.to(images))


def _kept(images: Tensor, labels: Tensor, params: dict[str, Tensor], model: nn.Module) -> bool:
    """Say whether a result keeps more than twice its own size in memory."""

    def compute_loss(params, sample, target):
        predictions = functional_call(model, params, (sample.unsqueeze(0),))
        return F.cross_entropy(predictions, target.unsqueeze(0))

    def smallest():
        return vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, images, labels)["bias"]

    return memory(smallest).kept > 2 * smallest().nbytes


def attached(images: Tensor, labels: Tensor) -> bool:
    model = Classifier().to(images)
    params = dict(model.named_parameters())
    return _kept(images, labels, params, model)  # more than the result stays in memory


def attached_fixed(images: Tensor, labels: Tensor) -> bool:
    model = Classifier().to(images)
    params = {name: p.detach() for name, p in model.named_parameters()}
    return _kept(images, labels, params, model)


def tied_apart(images: Tensor, labels: Tensor) -> Tensor:
    model = _Tied().to(images)  # model.b.weight is model.a.weight
    params = {name: p.detach() for name, p in model.named_parameters(remove_duplicate=False)}

    def compute_loss(params, sample, target):
        predictions = functional_call(model, params, (sample.unsqueeze(0),), tie_weights=False)
        return F.cross_entropy(predictions, target.unsqueeze(0))

    return vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, images, labels)["a.weight"]


def tied_apart_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = _Tied().to(images)
    params = {name: p.detach() for name, p in model.named_parameters()}  # one name for each

    def compute_loss(params, sample, target):
        predictions = functional_call(model, params, (sample.unsqueeze(0),))
        return F.cross_entropy(predictions, target.unsqueeze(0))

    return vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, images, labels)["a.weight"]


class _Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(28, 28), nn.Linear(28, 28)
        self.b.weight = self.a.weight

    def forward(self, images: Tensor) -> Tensor:
        return self.b(self.a(images.mean(dim=(1, 2))).tanh())[:, :10]


def legacy_copies(images: Tensor, labels: Tensor) -> Tensor:
    model = Classifier().to(images)
    fmodel, params, buffers = legacy.functorch().make_functional_with_buffers(model)
    with torch.no_grad():
        model.weight.mul_(2)  # a step of the optimizer
    return fmodel(params, buffers, images).norm()


def legacy_copies_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = Classifier().to(images)
    params = {name: p.detach() for name, p in model.named_parameters()}
    with torch.no_grad():
        model.weight.mul_(2)
    return functional_call(model, params, (images,)).norm()  # the same storage


def _legacy_copies_truth(images: Tensor, labels: Tensor) -> Tensor:
    model = Classifier().to(images)
    return F.linear(images.flatten(1), 2 * model.weight, model.bias).norm()


def legacy_mode(images: Tensor, labels: Tensor) -> Tensor:
    model = nn.Sequential(nn.Dropout(0.5), Classifier()).to(images)
    fmodel, params, buffers = legacy.functorch().make_functional_with_buffers(model)
    model.eval()
    return fmodel(params, buffers, images).norm()  # still with dropout


def legacy_mode_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = nn.Sequential(nn.Dropout(0.5), Classifier()).to(images)
    params = {name: p.detach() for name, p in model.named_parameters()}
    model.eval()
    return functional_call(model, params, (images,)).norm()


ENTRIES = [
    Silent(
        name="misspelled-name",
        symptom="the spread of logits, with weight and bias meant to be zero",
        cause="`functional_call` ignores a name that the model does not have, and takes what is "
        "missing from the model.",
        fix="`strict=True` raises on both, so all names have to be there.",
        broken=misspelled,
        fixed=misspelled_fixed,
        truth=lambda images, labels: images.new_zeros(()),
    ),
    Silent(
        name="shared-targets",
        symptom="the gradients of all samples",
        cause="`None` for the targets gives all of them to each sample. A loss that broadcasts "
        "takes them.",
        fix="`in_dims=(None, 0, 0)`.",
        broken=shared_targets,
        fixed=sliced_targets,
        truth=_regression_truth,
    ),
    Silent(
        name="keyword-arguments",
        symptom="the gradients of all samples",
        cause="`vmap` does not slice keyword arguments. Each sample gets the whole of them.",
        fix="Positional arguments, with an entry in `in_dims`.",
        broken=keyword,
        fixed=sliced_targets,
        truth=_regression_truth,
    ),
    Silent(
        name="attached-parameters",
        symptom="whether more than the result stays in memory",
        cause="Parameters that require gradients: each result carries the graph of its own "
        "computation, and keeps all of it alive.",
        fix="`p.detach()`.",
        broken=attached,
        fixed=attached_fixed,
        truth=lambda images, labels: False,
    ),
    Silent(
        name="tied-weights-apart",
        symptom="the gradients of the tied weight",
        cause="With a tied weight under both names, its gradient is split into two, and each is "
        "called the gradient.",
        fix="`named_parameters()` as it is, or the sum of the two.",
        broken=tied_apart,
        fixed=tied_apart_fixed,
        truth=lambda images, labels: loop_gradients(
            _Tied().to(images), F.cross_entropy, images, labels
        )["a.weight"],
    ),
    Silent(
        name="stale-copies",
        symptom="the norm of the logits after an update",
        warns="is deprecated",
        cause="`make_functional` copies the parameters. An optimizer that updates the model does "
        "not reach the copies.",
        fix="`functional_call` with detached parameters: they share the model's storage.",
        broken=legacy_copies,
        fixed=legacy_copies_fixed,
        truth=_legacy_copies_truth,
    ),
    Silent(
        name="mode-that-does-not-arrive",
        symptom="the norm of the logits after model.eval()",
        warns="is deprecated",
        cause="`make_functional` copies the model too. `model.eval()` does not reach the copy, "
        "and dropout goes on.",
        fix="`functional_call` runs the model itself, in the mode that it has.",
        broken=legacy_mode,
        fixed=legacy_mode_fixed,
        truth=lambda images, labels: (
            nn.Sequential(nn.Dropout(0.5), Classifier()).to(images).eval()(images).norm()
        ),
    ),
]
