"""Loud entries: the model is right, and the call is wrong."""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from helpers.gradients import loop_gradients
from helpers.limits.bare import Case, Classifier
from helpers.limits.entry import Loud


def _conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=3), nn.Flatten(), nn.Linear(324, 10))


def no_batch(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = _conv_net().to(images)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def compute_loss(params, sample, target):
        predictions = functional_call(model, params, (sample,))
        return F.cross_entropy(predictions, target)

    return vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, images, labels)


def with_batch(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = _conv_net().to(images)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def compute_loss(params, sample, target):
        predictions = functional_call(model, params, (sample.unsqueeze(0),))
        return F.cross_entropy(predictions, target.unsqueeze(0))

    return vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, images, labels)


def no_in_dims(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = _conv_net().to(images)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def compute_loss(params, sample, target):
        predictions = functional_call(model, params, (sample.unsqueeze(0),))
        return F.cross_entropy(predictions, target.unsqueeze(0))

    return vmap(grad(compute_loss))(params, images, labels)


def many_losses(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        return F.cross_entropy(z, labels, reduction="none")

    return Case(Classifier().to(images), loss_fn, images, labels)


def many_losses_fixed(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        return F.cross_entropy(z, labels, reduction="sum")

    return Case(Classifier().to(images), loss_fn, images, labels)


def tied_names(images: Tensor, labels: Tensor) -> Tensor:
    model = _Tied().to(images)  # model.decode.weight is model.encode.weight
    state = {name: t.detach() for name, t in model.state_dict().items()}
    return functional_call(model, state, (images,))


def tied_names_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = _Tied().to(images)
    state = {name: p.detach() for name, p in model.named_parameters()}  # one name for each
    return functional_call(model, state, (images,))


class _Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(784, 784), nn.Linear(784, 784)
        self.decode.weight = self.encode.weight

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images.flatten(1)).tanh())


def _loop(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return loop_gradients(_conv_net().to(images), F.cross_entropy, images, labels)


ENTRIES = [
    Loud(
        name="missing-batch-dimension",
        symptom="mat1 and mat2 shapes cannot be multiplied",
        cause="The model expects a batch, and meets one sample. The convolution takes it; the "
        "error comes from the linear layer behind, and speaks of shapes alone.",
        fix="`unsqueeze(0)`, for the sample and for its target.",
        broken=no_batch,
        fixed=with_batch,
        truth=_loop,
    ),
    Loud(
        name="default-in-dims",
        error=ValueError,
        symptom="Expected all tensors to have the same size in the mapped dimension",
        cause="The default of `in_dims` is 0 for all arguments. The parameters are sliced too.",
        fix="`in_dims=(None, 0, 0)`: parameters shared, samples and targets sliced.",
        broken=no_in_dims,
        fixed=with_batch,
        truth=_loop,
    ),
    Loud(
        name="loss-is-no-scalar",
        symptom="Expected f(*args) to return a scalar Tensor",
        cause='`grad` starts from one number. `reduction="none"` returns a batch of one.',
        fix='`reduction="sum"` or `"mean"`; `.sum()` or `.squeeze()`.',
        broken=many_losses,
        fixed=many_losses_fixed,
    ),
    Loud(
        name="tied-names",
        error=ValueError,
        symptom="functional_call got multiple values for keys",
        cause="`state_dict()` lists a tied weight under each of its names, as tensors that are not "
        "one any more.",
        fix="`named_parameters()` lists it once, and `functional_call` puts it in both places.",
        broken=tied_names,
        fixed=tied_names_fixed,
        truth=lambda images, labels: _Tied().to(images)(images),
    ),
]
