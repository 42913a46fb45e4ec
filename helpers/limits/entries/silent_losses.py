"""Silent entries: the loss, or the precision, makes a number that looks right."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.gradients import loop_gradients
from helpers.limits.bare import Case, Classifier, bare_gradients, tokens
from helpers.limits.entry import Silent, agree, alike, run, warns


def weighted(images: Tensor, labels: Tensor) -> Case:
    weights = torch.arange(1, 11).to(images)

    def loss_fn(z, labels):
        return F.cross_entropy(z, labels, weight=weights)

    return Case(Classifier().to(images), loss_fn, images, labels)


def weighted_fixed(images: Tensor, labels: Tensor) -> Case:
    weights = torch.arange(1, 11).to(images)

    def loss_fn(z, labels):
        return F.cross_entropy(z, labels, weight=weights, reduction="sum")

    return Case(Classifier().to(images), loss_fn, images, labels)


def _without_weights(images: Tensor, labels: Tensor) -> Case:
    return Case(Classifier().to(images), F.cross_entropy, images, labels)


def _class_weights_truth(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Scale each unweighted gradient by the weight of its class, 1 to 10."""
    gradients = loop_gradients(Classifier().to(images), F.cross_entropy, images, labels)
    weights = (labels + 1).to(images)
    return {name: torch.einsum("b,b...->b...", weights, g) for name, g in gradients.items()}


class _NextToken(nn.Sequential):
    """Predict each token from the one before; texts are 2, 3, 4, ... tokens long."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(16, 6), nn.Linear(6, 16))


def _texts(images: Tensor) -> tuple[Tensor, Tensor]:
    texts = tokens(images)
    targets = texts.roll(-1, dims=1)
    lengths = 2 + torch.arange(len(texts), device=texts.device) % 18
    beyond = torch.arange(20, device=texts.device) >= lengths[:, None]
    return texts, targets.masked_fill(beyond, -100)


def unequal_units(images: Tensor, labels: Tensor) -> Tensor:
    model = _NextToken().to(images)
    texts, targets = _texts(images)  # padded with -100 to 20 tokens

    def loss_fn(z, targets):
        return F.cross_entropy(z.flatten(0, 1), targets.flatten(), ignore_index=-100)

    return bare_gradients(model, loss_fn, texts, targets)["1.weight"].mean(dim=0)


def unequal_units_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = _NextToken().to(images)
    texts, targets = _texts(images)

    def loss_fn(z, targets):
        z, targets = z.flatten(0, 1), targets.flatten()
        return F.cross_entropy(z, targets, ignore_index=-100, reduction="sum")

    sums = bare_gradients(model, loss_fn, texts, targets)["1.weight"].sum(dim=0)
    return sums / (targets != -100).sum()


def _unequal_units_case(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, targets):
        return F.cross_entropy(z.flatten(0, 1), targets.flatten())

    return Case(_NextToken().to(images), loss_fn, *_texts(images))


def _unequal_units_truth(images: Tensor, labels: Tensor) -> Tensor:
    model, loss_fn, texts, targets = _unequal_units_case(images, labels)
    return torch.autograd.grad(loss_fn(model(texts), targets), model[1].weight)[0]


def _regression(images: Tensor) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 1)).to(images)


def broadcast(images: Tensor, labels: Tensor) -> Tensor:
    model = _regression(images)
    loss = (model(images) - labels.to(images)).square().mean()  # (B, 1) and (B,)
    return torch.autograd.grad(loss, model[1].weight)[0]


def broadcast_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = _regression(images)
    loss = (model(images) - labels.to(images)[:, None]).square().mean()  # (B, 1) both
    return torch.autograd.grad(loss, model[1].weight)[0]


def _broadcast_by_torch(images: Tensor, labels: Tensor) -> Tensor:
    model = _regression(images)
    loss = F.mse_loss(model(images), labels.to(images))
    return torch.autograd.grad(loss, model[1].weight)[0]


def _broadcast_case(images: Tensor, labels: Tensor) -> Case:
    return Case(_regression(images), F.mse_loss, images, labels.to(images))


def _broadcast_truth(images: Tensor, labels: Tensor) -> Tensor:
    """Average per-sample gradients, in which a batch of one has nothing to be broadcast to."""
    return loop_gradients(*_broadcast_case(images, labels))["1.weight"].mean(dim=0)


def loss_reduction(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    model = Classifier().to(images)
    predictions = call_for_per_sample_grads(model, loss_reduction="sum")(images)
    F.cross_entropy(predictions, labels).backward()  # a mean
    return {name: p.grad_sample for name, p in model.named_parameters()}


def loss_reduction_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

    model = Classifier().to(images)
    predictions = call_for_per_sample_grads(model, loss_reduction="mean")(images)
    F.cross_entropy(predictions, labels).backward()
    return {name: p.grad_sample for name, p in model.named_parameters()}


def _off(model: nn.Module, images: Tensor, labels: Tensor) -> bool:
    """Say whether gradients are off by more than a thousandth of their norm."""
    got = bare_gradients(model, F.cross_entropy, images, labels)["weight"].double()
    exact = copy.deepcopy(model).double()
    truth = loop_gradients(exact, F.cross_entropy, images.double(), labels)["weight"]
    return bool((got - truth).norm() > 1e-3 * truth.norm())


def low_precision(images: Tensor, labels: Tensor) -> bool:
    model = Classifier().to(images).bfloat16()
    return _off(model, images.bfloat16(), labels)


def low_precision_fixed(images: Tensor, labels: Tensor) -> bool:
    model = Classifier().to(images).bfloat16().float()  # the same weights
    return _off(model, images.bfloat16().float(), labels)


def _low_precision_case(images: Tensor, labels: Tensor) -> Case:
    return Case(Classifier().to(images).bfloat16(), F.cross_entropy, images.bfloat16(), labels)


ENTRIES = [
    Silent(
        name="class-weights",
        symptom="the gradients of all samples",
        cause="The mean of `cross_entropy` with `weight` divides by the sum of the weights. In a "
        "batch of one that is the sample's own weight, and it cancels: every gradient is as if "
        "there were no weights.",
        also={
            "the wrong ones equal those without weights": lambda *few: alike(
                weighted, _without_weights, *few
            )
        },
        fix='`reduction="sum"`. Divide by the sum of the weights of the batch if you want the '
        "terms of its mean.",
        broken=weighted,
        fixed=weighted_fixed,
        truth=_class_weights_truth,
        lasting=True,
    ),
    Silent(
        name="means-of-unequal-units",
        symptom="the mean of the per-sample gradients",
        cause="Each sample's loss is a mean over its tokens, the batch's loss a mean over all "
        "tokens. Short texts count for more in the mean of means.",
        fix='`reduction="sum"` for each sample, and one division at the end.',
        broken=unequal_units,
        fixed=unequal_units_fixed,
        truth=_unequal_units_truth,
        case=_unequal_units_case,
        lasting=True,
    ),
    Silent(
        name="loss-that-broadcasts",
        symptom="the gradient of the batch",
        cause="Predictions `(B, 1)` against targets `(B,)` broadcast to `(B, B)`: each sample "
        "meets every target. Here the *batch* gradient is the wrong one; in a batch of one there "
        "is nothing to broadcast.",
        also={
            "`F.mse_loss` gives the same wrong gradient": lambda *few: alike(
                broadcast, _broadcast_by_torch, *few
            ),
            "`F.mse_loss` warns of it": lambda *few: warns(
                "different to the input size", lambda: _broadcast_by_torch(*few)
            ),
        },
        fix="One shape for both: `targets[:, None]`, or `predictions.squeeze(1)`.",
        broken=broadcast,
        fixed=broadcast_fixed,
        truth=_broadcast_truth,
        case=_broadcast_case,
        lasting=True,
    ),
    Silent(
        name="wrong-loss-reduction",
        symptom="the gradients of all samples",
        cause="Such a library sees the gradient of the batch's loss, and has to be told whether "
        "that is a sum or a mean. Told wrong, it is off by the factor B.",
        also={
            "wrong times B is right": lambda images, labels: agree(
                len(images) * run(loss_reduction, images, labels),
                run(loss_reduction_fixed, images, labels),
            )
        },
        fix='`loss_reduction="mean"` for a mean.',
        broken=loss_reduction,
        fixed=loss_reduction_fixed,
        truth=lambda images, labels: loop_gradients(
            Classifier().to(images), F.cross_entropy, images, labels
        ),
    ),
    Silent(
        name="low-precision",
        symptom="whether gradients are off by more than 0.1 %",
        cause="A number rounded to bfloat16 is off by up to 0.4 % of itself: it keeps 8 "
        "significant bits.",
        also={
            "half the spacing at 1 is 1/256": lambda *few: (
                torch.finfo(torch.bfloat16).eps / 2 == 1 / 256
            )
        },
        fix="Per-sample gradients in float32, of a model in float32.",
        broken=low_precision,
        fixed=low_precision_fixed,
        truth=lambda images, labels: False,
        case=_low_precision_case,
    ),
]
