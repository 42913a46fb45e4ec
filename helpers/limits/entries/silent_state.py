"""Silent entries: what a model keeps, and what a transform leaves there or leaves out."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from helpers.gradients import func_gradients, loop_gradients
from helpers.limits.bare import Case, Classifier, bare_gradients
from helpers.limits.entry import Silent, alike, raises


class Counting(Classifier):
    """It counts its calls in a buffer, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(images)


def aliased(images: Tensor, labels: Tensor) -> int:
    model = Counting().to(images)  # in its forward, for a buffer: self.calls += 1
    bare_gradients(model, F.cross_entropy, images, labels, chunk_size=2)
    return model.calls.item()


def aliased_fixed(images: Tensor, labels: Tensor) -> int:
    model = Counting().to(images)
    func_gradients(model, F.cross_entropy, images, labels, chunk_size=2)  # it clones buffers
    return model.calls.item()


class Rebinding(Counting):
    """It counts its calls in a buffer, and binds the sum to the name."""

    def forward(self, images: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return Classifier.forward(self, images)


def rebound(images: Tensor, labels: Tensor) -> int:
    model = Rebinding().to(images)  # in its forward: self.calls = self.calls + 1
    functional_call(model, dict(model.named_buffers()), (images,))
    return model.calls.item()


def rebound_fixed(images: Tensor, labels: Tensor) -> int:
    model = Rebinding().to(images)
    model(images)
    return model.calls.item()


class Twice(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(28, 28)
        self.second = self.first

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.first(images.mean(dim=(1, 2))).tanh())[:, :10]


def shared_layer(images: Tensor, labels: Tensor) -> bool:
    model = Twice().to(images)  # model.second is model.first
    bare_gradients(model, F.cross_entropy, images, labels)
    return isinstance(model.first.weight, nn.Parameter)


def _twice(images: Tensor, labels: Tensor) -> Case:
    return Case(Twice().to(images), F.cross_entropy, images, labels)


def _used_twice(images: Tensor, labels: Tensor) -> nn.Module:
    model = Twice().to(images)
    bare_gradients(model, F.cross_entropy, images, labels)
    return model


def shared_layer_fixed(images: Tensor, labels: Tensor) -> bool:
    model = Twice().to(images)
    bare_gradients(copy.deepcopy(model), F.cross_entropy, images, labels)
    return isinstance(model.first.weight, nn.Parameter)


class Stashing(Classifier):
    """It keeps its last logits as an attribute."""

    def forward(self, images: Tensor) -> Tensor:
        self.logits = super().forward(images)
        return self.logits


def usable(tensor: Tensor) -> bool:
    """Say whether a tensor still takes part in arithmetic."""
    try:
        return bool((tensor + 1).isfinite().all())
    except RuntimeError:  # "may have escaped from inside a function being vmapped"
        return False


def stashed(images: Tensor, labels: Tensor) -> bool:
    model = Stashing().to(images)  # in its forward: self.logits = ...
    bare_gradients(model, F.cross_entropy, images, labels)
    return usable(model.logits)


def stashed_fixed(images: Tensor, labels: Tensor) -> bool:
    model = Stashing().to(images)
    bare_gradients(copy.deepcopy(model), F.cross_entropy, images, labels)
    model(images)
    return usable(model.logits)


def frozen(images: Tensor, labels: Tensor) -> list[str]:
    model = Classifier().to(images)
    model.weight.requires_grad_(False)
    return list(bare_gradients(model, F.cross_entropy, images, labels))


def frozen_fixed(images: Tensor, labels: Tensor) -> list[str]:
    model = Classifier().to(images)
    model.weight.requires_grad_(False)
    params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def compute_loss(params, sample, target):
        predictions = functional_call(model, params, (sample.unsqueeze(0),))
        return F.cross_entropy(predictions, target.unsqueeze(0))

    return list(vmap(grad(compute_loss), in_dims=(None, 0, 0))(params, images, labels))


def _frozen_case(images: Tensor, labels: Tensor) -> Case:
    model = Classifier().to(images)
    model.weight.requires_grad_(False)
    return Case(model, F.cross_entropy, images, labels)


def parameter_hook(images: Tensor, labels: Tensor) -> Tensor:
    model = Classifier().to(images)
    model.bias.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return bare_gradients(model, F.cross_entropy, images, labels)["bias"].abs().max()


def parameter_hook_fixed(images: Tensor, labels: Tensor) -> Tensor:
    model = Classifier().to(images)
    gradients = bare_gradients(model, F.cross_entropy, images, labels)
    return gradients["bias"].clamp(-0.01, 0.01).abs().max()


def _parameter_hook_case(images: Tensor, labels: Tensor) -> Case:
    model = Classifier().to(images)
    model.bias.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return Case(model, F.cross_entropy, images, labels)


def _parameter_hook_truth(images: Tensor, labels: Tensor) -> Tensor:
    """Run the loop with `.backward()`, which calls the hook, and take the largest."""
    model, loss_fn, *_ = _parameter_hook_case(images, labels)
    largest = []
    for image, label in zip(images, labels, strict=True):
        model.zero_grad()
        loss_fn(model(image[None]), label[None]).backward()
        largest.append(model.bias.grad.abs().max())
    return torch.stack(largest).max()


ENTRIES = [
    Silent(
        name="aliased-buffers",
        symptom="the count in the model afterwards",
        cause="`b.detach()` is another name for the same memory. A forward that writes into a "
        "buffer in place writes into the model's own, once for each chunk.",
        fix="Clone the buffers inside the function: `{k: b.clone() for k, b in buffers.items()}`. "
        "`func_gradients` does.",
        broken=aliased,
        fixed=aliased_fixed,
        truth=lambda images, labels: 0,
        case=lambda images, labels: Case(Counting().to(images), F.cross_entropy, images, labels),
    ),
    Silent(
        name="rebound-buffers",
        symptom="the count in the model after one call",
        cause="`functional_call` puts back what was there before. What the forward bound to the "
        "name of a buffer is lost.",
        fix="Update such buffers in a forward of the module itself.",
        broken=rebound,
        fixed=rebound_fixed,
        truth=lambda images, labels: 1,
        case=lambda images, labels: Case(Rebinding().to(images), F.cross_entropy, images, labels),
    ),
    Silent(
        name="shared-layer",
        symptom="whether the layer still has a parameter",
        cause="`functional_call` swaps the parameters of a layer under each of its names. After "
        "the transform, a layer with two names keeps a tensor of the transform in place of its "
        "parameter.",
        also={
            "the gradients are right": lambda *few: alike(
                _twice, lambda *few: loop_gradients(*_twice(*few)), *few
            ),
            "the forward still runs": lambda *few: (
                _used_twice(*few)(few[0]).shape == (len(few[0]), 10)
            ),
            "its output requires no gradient any more": lambda *few: (
                not _used_twice(*few)(few[0]).requires_grad
            ),
            "`copy.deepcopy` of the model raises": lambda *few: raises(
                "Cannot access storage", lambda: copy.deepcopy(_used_twice(*few))
            ),
        },
        fix="Give transforms a copy of the model, or put its parameters back, as `func_gradients` "
        "does.",
        broken=shared_layer,
        fixed=shared_layer_fixed,
        truth=lambda images, labels: True,
        case=_twice,
    ),
    Silent(
        name="stashed-activation",
        symptom="whether the stashed tensor can be used afterwards",
        cause="What a forward keeps on `self` inside `vmap` is a tensor of the transform. It fails "
        "when it is used, perhaps much later: *may have escaped from inside a function being "
        "vmapped*.",
        fix="Return it, with `has_aux=True` of `grad`; or give transforms a copy of the model.",
        broken=stashed,
        fixed=stashed_fixed,
        truth=lambda images, labels: True,
        case=lambda images, labels: Case(Stashing().to(images), F.cross_entropy, images, labels),
    ),
    Silent(
        name="frozen-parameters",
        symptom="the names that got a gradient",
        cause="`grad` differentiates its argument, whatever `requires_grad` says.",
        fix="Hand in the trainable parameters alone. `functional_call` takes the others from the "
        "model.",
        broken=frozen,
        fixed=frozen_fixed,
        truth=lambda images, labels: ["bias"],
        case=_frozen_case,
    ),
    Silent(
        name="parameter-hooks",
        symptom="the largest gradient of the bias, clamped by a hook",
        cause="`p.register_hook` belongs to the parameter. A transform differentiates a detached "
        "tensor, which has no hooks.",
        fix="Do to the per-sample gradients what the hook did.",
        broken=parameter_hook,
        fixed=parameter_hook_fixed,
        truth=_parameter_hook_truth,
        case=_parameter_hook_case,
    ),
]
