"""Silent entries: models that are right, of which torch's own backward returns wrong numbers."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacfwd, jacrev, vmap

from helpers.jacobians import func_jacobians, loop_jacobians, unflatten_jacobians
from helpers.limits.bare import Case, bare_gradients, one_vector
from helpers.limits.entry import Silent, agree, alike, raises


class Stem(nn.Module):
    """A convolution and a normalisation, read as a sequence of positions."""

    def __init__(self, norm: nn.Module, behind: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 7, stride=7), norm
        self.behind = behind
        self.fc = nn.Linear(4, 10)

    def forward(self, images: Tensor) -> Tensor:
        features = self.behind(self.norm(self.conv(images)))  # (B, 4, 4, 4)
        positions = features.flatten(2).transpose(1, 2)  # (B, 16, 4)
        return self.fc(positions.tanh().mean(dim=1))


def gradients_in_a_loop(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    params = dict(model.named_parameters())
    rows = [
        torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(params.values()))
        for x, y in zip(images, labels, strict=True)
    ]
    return dict(zip(params, map(torch.stack, zip(*rows, strict=True)), strict=True))


def transposed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = Stem(nn.BatchNorm2d(4)).to(images).eval()
    return gradients_in_a_loop(model, images, labels)


class Contiguous(torch.autograd.Function):
    """The identity, whose gradient lies in memory in the order of its indices."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient.contiguous()


def transposed_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = Stem(nn.BatchNorm2d(4), Contiguous.apply).to(images).eval()
    return gradients_in_a_loop(model, images, labels)


def _transposed_case(images: Tensor, labels: Tensor) -> Case:
    return Case(Stem(nn.BatchNorm2d(4)).to(images).eval(), F.cross_entropy, images, labels)


def _transposed_truth(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Differentiate each sample in a batch of two copies of it, where nothing is misread."""
    model = Stem(nn.BatchNorm2d(4)).to(images).eval()
    return gradients_in_a_loop(_Doubled(model), images, labels)


class _Doubled(nn.Module):
    """A model that is run on two copies of its sample, for the first of which it answers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def named_parameters(self, *args, **options):
        return self.model.named_parameters(*args, **options)

    def forward(self, image: Tensor) -> Tensor:
        return self.model(image.repeat(2, 1, 1, 1))[:1]


def _loop_is_right(model: nn.Module, images: Tensor, labels: Tensor) -> bool:
    """Compare the loop with batches of two copies, for a variant of the model."""
    model = model.to(images).eval()
    got = gradients_in_a_loop(model, images, labels)
    right = gradients_in_a_loop(_Doubled(model), images, labels)
    return agree(one_vector(got), one_vector(right))


def _slope_is_that_of_vmap(images: Tensor, labels: Tensor) -> bool:
    """Compare the bare composition with a difference quotient, in a random direction."""
    model, loss_fn, image, label = _transposed_case(images[:1], labels[:1])
    grads = bare_gradients(model, loss_fn, image, label)
    params = {name: p.detach() for name, p in model.named_parameters()}
    direction = {name: torch.randn_like(p) for name, p in params.items()}

    def loss(step):
        moved = {name: p + step * direction[name] for name, p in params.items()}
        return loss_fn(functional_call(model, moved, (image,)), label)

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    return agree(sum((g[0] * direction[name]).sum() for name, g in grads.items()), slope, 1e-6)


class TokensAsImage(nn.Module):
    """Patches as tokens, which are read as an image to be normalised."""

    def __init__(self, norm: nn.Module, before: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(49, 4), norm
        self.before = before
        self.fc = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = F.unfold(images, 7, stride=7).transpose(1, 2)  # (B, 16, 49)
        tokens = self.embed(patches)  # (B, 16, 4)
        features = self.before(tokens.transpose(1, 2).unflatten(2, (4, 4)))  # (B, 4, 4, 4)
        return self.fc(self.norm(features).flatten(1).tanh())


def tokens_normed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = TokensAsImage(nn.BatchNorm2d(4)).to(images).eval()
    return gradients_in_a_loop(model, images, labels)


def tokens_normed_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = TokensAsImage(nn.BatchNorm2d(4), torch.Tensor.contiguous).to(images).eval()
    return gradients_in_a_loop(model, images, labels)


def _channels_last(images: Tensor) -> Tensor:
    return images.clone(memory_format=torch.channels_last)


class _Then(nn.BatchNorm2d):
    """A normalisation, and a function of what it returns."""

    def __init__(self, behind: Callable[[Tensor], Tensor]) -> None:
        super().__init__(4)
        self.behind = behind

    def forward(self, images: Tensor) -> Tensor:
        return self.behind(super().forward(images))


def _tokens_case(images: Tensor, labels: Tensor) -> Case:
    return Case(TokensAsImage(nn.BatchNorm2d(4)).to(images).eval(), F.cross_entropy, images, labels)


def _tokens_truth(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Differentiate each sample in a batch of two copies of it, where nothing is misread."""
    return gradients_in_a_loop(
        _Doubled(TokensAsImage(nn.BatchNorm2d(4)).to(images).eval()), images, labels
    )


def jacobians(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    params = {name: p.detach() for name, p in model.named_parameters()}

    def outputs(params, image):
        return functional_call(model, params, (image.unsqueeze(0),)).squeeze(0)

    return vmap(jacrev(outputs), in_dims=(None, 0))(params, images)


def prelu(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    outputs = len(images)  # as many as there are samples
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, outputs), nn.PReLU(init=0.1)).to(images)
    return jacobians(model, images)


class WrittenOut(nn.PReLU):
    """PReLU, by what it is made of."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, self.weight * x)


def prelu_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    outputs = len(images)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, outputs), WrittenOut(init=0.1)).to(images)
    return jacobians(model, images)


def _with_prelu(images: Tensor, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, outputs), nn.PReLU(init=0.1)).to(images)


def _prelu_truth(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Differentiate in two loops, over samples and outputs, without transforms."""
    model = _with_prelu(images, len(images))
    return unflatten_jacobians(loop_jacobians(model, images), model)


def _prelu_by_jacfwd(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = _with_prelu(images, len(images))
    params = {name: p.detach() for name, p in model.named_parameters()}

    def outputs(params, image):
        return functional_call(model, params, (image.unsqueeze(0),)).squeeze(0)

    return vmap(jacfwd(outputs), in_dims=(None, 0))(params, images)


def _prelu_by_helper(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = _with_prelu(images, len(images))
    return unflatten_jacobians(func_jacobians(model, images), model)


def _prelu_of_one_more_raises(images: Tensor, labels: Tensor) -> bool:
    images = images.cpu()  # where an error in a backward is raised in this thread
    model = _with_prelu(images, len(images) + 1)
    return raises("must match the size of tensor", lambda: jacobians(model, images))


def _prelu_gradients_are_right(images: Tensor, labels: Tensor) -> bool:
    model = _with_prelu(images, 10)
    grads = bare_gradients(model, F.cross_entropy, images, labels)
    return agree(one_vector(grads), one_vector(gradients_in_a_loop(model, images, labels)))


ENTRIES = [
    Silent(
        name="normalisation-transposed",
        symptom="the loop's gradients of the normalisation, and of all that comes before it",
        cause="A fault of torch on a CPU, of the *loop*. In a batch of one, a BatchNorm2d that "
        "`flatten(2).transpose(1, 2)` follows gets its gradient in the order (position, channel) "
        "in memory, and reads it as (channel, position): right numbers at wrong places.",
        also={
            "`vmap(grad)` gives the right numbers": lambda *few: alike(
                _transposed_case, _transposed_truth, *few
            ),
            "and agrees with a difference quotient, in a random direction": _slope_is_that_of_vmap,
            "`InstanceNorm2d` has the same fault": lambda *few: (
                not _loop_is_right(Stem(nn.InstanceNorm2d(4, affine=True)), *few)
            ),
            "`GroupNorm` has not": lambda *few: _loop_is_right(Stem(nn.GroupNorm(2, 4)), *few),
            "`clone()` and `* 1` behind the normalisation do not help": lambda *few: (
                not _loop_is_right(Stem(nn.BatchNorm2d(4), lambda x: x.clone() * 1), *few)
            ),
            "a ReLU there does": lambda *few: _loop_is_right(
                Stem(nn.BatchNorm2d(4), torch.relu), *few
            ),
        },
        fix="Take `vmap(grad)`; or put an identity behind the normalisation whose backward makes "
        "the gradient contiguous.",
        broken=transposed,
        fixed=transposed_fixed,
        truth=_transposed_truth,
        case=_transposed_case,
    ),
    Silent(
        name="normalisation-of-tokens",
        symptom="the loop's gradients of the normalisation, and of what its image is made of",
        cause="A fault of torch on a CPU, of the *loop*. An image made of tokens lies in memory "
        "position by position. In a batch of one, BatchNorm2d gets its gradient in the usual "
        "order, channel by channel, and reads it in that of the image: right numbers at wrong "
        "places.",
        also={
            "`vmap(grad)` gives the right numbers": lambda *few: alike(
                _tokens_case, _tokens_truth, *few
            ),
            "`GroupNorm` has not this fault": lambda *few: _loop_is_right(
                TokensAsImage(nn.GroupNorm(2, 4)), *few
            ),
            "a copy in the order `torch.channels_last` is read rightly": lambda *few: (
                _loop_is_right(TokensAsImage(nn.BatchNorm2d(4), _channels_last), *few)
            ),
            "the identity of `normalisation-transposed` behind it does not help": lambda *few: (
                not _loop_is_right(TokensAsImage(_Then(Contiguous.apply)), *few)
            ),
        },
        fix="Take `vmap(grad)`; or `contiguous()` in front of the normalisation.",
        broken=tokens_normed,
        fixed=tokens_normed_fixed,
        truth=_tokens_truth,
        case=_tokens_case,
    ),
    Silent(
        name="prelu-in-jacobians",
        symptom="the Jacobians of PReLU's weight, and of all that comes before it",
        cause="A fault of torch. Under `vmap` over `jacrev`, the backward of PReLU mixes up the "
        "dimension of the samples and that of the outputs. Where both have one size, nothing "
        "raises.",
        also={
            "with one output more it raises": _prelu_of_one_more_raises,
            "`vmap(grad)` of a loss is right": _prelu_gradients_are_right,
            "`vmap(jacfwd)` is right": lambda *few: alike(_prelu_by_jacfwd, _prelu_truth, *few),
            "`func_jacobians` is right": lambda *few: alike(_prelu_by_helper, _prelu_truth, *few),
        },
        fix="Write PReLU out with `torch.where`, or take `jacfwd`, or `func_jacobians`.",
        broken=prelu,
        fixed=prelu_fixed,
        truth=_prelu_truth,
    ),
]
