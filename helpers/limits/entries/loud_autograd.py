"""Loud entries: what hooks into autograd or walks around it, and dtypes that do not meet."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from helpers.gradients import loop_gradients
from helpers.limits.bare import Case, Classifier, bare_gradients, tokens
from helpers.limits.entry import Loud, raises

_SETUP_CONTEXT = "it must override the setup_context staticmethod"


def function_2022(images: Tensor, labels: Tensor) -> Case:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    class Model(Classifier):
        def forward(self, images):
            return Square.apply(super().forward(images))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def function_without_vmap(images: Tensor, labels: Tensor) -> Case:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    class Model(Classifier):
        def forward(self, images):
            return Square.apply(super().forward(images))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def function_with_vmap(images: Tensor, labels: Tensor) -> Case:
    class Square(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    class Model(Classifier):
        def forward(self, images):
            return Square.apply(super().forward(images))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def backward_hook(images: Tensor, labels: Tensor) -> Case:
    model = Classifier().to(images)
    model.register_full_backward_hook(lambda module, inputs, outputs: None)
    return Case(model, F.cross_entropy, images, labels)


def backward_hook_fixed(images: Tensor, labels: Tensor) -> Case:
    model = Classifier().to(images)
    handle = model.register_full_backward_hook(lambda module, inputs, outputs: None)
    handle.remove()
    return Case(model, F.cross_entropy, images, labels)


def checkpointing(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return checkpoint(super().forward, images, use_reentrant=False)

    return Case(Model().to(images), F.cross_entropy, images, labels)


def _reentrant(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            return checkpoint(super().forward, images, use_reentrant=True)

    return Case(Model().to(images), F.cross_entropy, images, labels)


def _saved_on_cpu(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            with torch.autograd.graph.save_on_cpu():
                return super().forward(images)

    return Case(Model().to(images), F.cross_entropy, images, labels)


def checkpointing_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model = Classifier().to(images)  # no checkpoint; fewer samples at a time instead
    return bare_gradients(model, F.cross_entropy, images, labels, chunk_size=4)


def backward(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        loss = F.cross_entropy(z, labels)
        loss.backward()
        return loss

    return Case(Classifier().to(images), loss_fn, images, labels)


def backward_fixed(images: Tensor, labels: Tensor) -> Case:
    def loss_fn(z, labels):
        return F.cross_entropy(z, labels)  # grad, around it, is the backward

    return Case(Classifier().to(images), loss_fn, images, labels)


def requires_grad(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            images = images.detach().requires_grad_()
            z = super().forward(images)
            (slope,) = torch.autograd.grad(z.square().sum(), images, create_graph=True)
            return z + slope.square().sum(dim=(1, 2, 3))[:, None]

    return Case(Model().to(images), F.cross_entropy, images, labels)


def requires_grad_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    class Model(Classifier):
        def forward(self, images):
            classify = super().forward
            slope = grad(lambda images: classify(images).square().sum())(images)
            return classify(images) + slope.square().sum(dim=(1, 2, 3))[:, None]

    return bare_gradients(Model().to(images), F.cross_entropy, images, labels)


def sparse(images: Tensor, labels: Tensor) -> Case:
    words = nn.Embedding(16, 6, sparse=True)
    model = nn.Sequential(words, nn.Flatten(), nn.Linear(120, 10)).to(images)
    return Case(model, F.cross_entropy, tokens(images), labels)


def sparse_fixed(images: Tensor, labels: Tensor) -> Case:
    words = nn.Embedding(16, 6)
    model = nn.Sequential(words, nn.Flatten(), nn.Linear(120, 10)).to(images)
    return Case(model, F.cross_entropy, tokens(images), labels)


def autocast(images: Tensor, labels: Tensor) -> Case:
    class Model(nn.Sequential):
        def forward(self, images):
            with torch.autocast(images.device.type, torch.bfloat16):
                return super().forward(images).float()

    model = Model(Classifier(), nn.LayerNorm(10)).to(images.device)
    return Case(model, F.cross_entropy, images.float(), labels)


def _autocast_for_each(images: Tensor, labels: Tensor) -> bool:
    """Run the forward under `vmap`, without a derivative."""
    model, _, images, _ = autocast(images, labels)
    params = {name: p.detach() for name, p in model.named_parameters()}
    outputs = vmap(lambda image: functional_call(model, params, (image.unsqueeze(0),)))(images)
    return bool(outputs.isfinite().all())


def _autocast_for_one(images: Tensor, labels: Tensor) -> bool:
    """Differentiate the loss of one sample, without `vmap`."""
    model, loss_fn, images, labels = autocast(images[:1], labels[:1])
    params = {name: p.detach() for name, p in model.named_parameters()}
    grads = grad(lambda params: loss_fn(functional_call(model, params, (images,)), labels))(params)
    return bool(grads["0.weight"].isfinite().all())


def autocast_fixed(images: Tensor, labels: Tensor) -> Case:
    model = nn.Sequential(Classifier(), nn.LayerNorm(10)).to(images.device)  # no autocast
    return Case(model, F.cross_entropy, images.float(), labels)


def _sets_up_no_context(*few: Tensor) -> bool:
    from torch.nn.modules._functions import BackwardHookFunction

    return BackwardHookFunction.setup_context is torch.autograd.Function.setup_context


ENTRIES = [
    Loud(
        name="autograd-function",
        symptom=_SETUP_CONTEXT,
        cause="A custom `autograd.Function` in its older form, with `ctx` in its forward.",
        also={
            "reentrant checkpointing raises the same": lambda *few: raises(
                _SETUP_CONTEXT, lambda: bare_gradients(*_reentrant(*few))
            )
        },
        fix="Part `forward(x)` from `setup_context(ctx, inputs, output)`. The next entry is what "
        "comes then.",
        broken=function_2022,
        fixed=function_with_vmap,
    ),
    Loud(
        name="autograd-function-without-vmap",
        symptom="but it does not have vmap support",
        cause="An `autograd.Function` in the new form, and nothing says how to run it over a "
        "batch.",
        fix="`generate_vmap_rule = True`, if forward and backward consist of operations of torch.",
        broken=function_without_vmap,
        fixed=function_with_vmap,
    ),
    Loud(
        name="full-backward-hook",
        symptom=_SETUP_CONTEXT,
        cause="`register_full_backward_hook` puts an `autograd.Function` of the older form around "
        "the module. No such function is in your code.",
        also={"torch's `BackwardHookFunction` sets up no context of its own": _sets_up_no_context},
        fix="Remove the hook for the time of the transform. What it did, do to the per-sample "
        "gradients.",
        broken=backward_hook,
        fixed=backward_hook_fixed,
        at=lambda module: bool(module._backward_hooks or module._backward_pre_hooks),
    ),
    Loud(
        name="checkpointing",
        symptom="don't yet support saved tensor hooks",
        cause="Activation checkpointing hooks into what autograd saves for the backward pass.",
        also={
            "`save_on_cpu` raises the same": lambda *few: raises(
                "don't yet support saved tensor hooks",
                lambda: bare_gradients(*_saved_on_cpu(*few)),
            )
        },
        fix="No checkpoints. `chunk_size` runs fewer samples at a time, with the activations of "
        "these alone.",
        broken=checkpointing,
        fixed=checkpointing_fixed,
        truth=lambda images, labels: loop_gradients(*backward_fixed(images, labels)),
    ),
    Loud(
        name="backward-inside",
        symptom="backward() called inside a functorch transform",
        cause="`.backward()` writes into `.grad` of the parameters. A transform returns gradients "
        "instead, and refuses.",
        fix="Return the loss. `grad` is the backward.",
        broken=backward,
        fixed=backward_fixed,
    ),
    Loud(
        name="requires-grad-inside",
        symptom="You are attempting to call Tensor.requires_grad_()",
        cause="A model that differentiates with respect to its input (a gradient penalty, forces, "
        "a physical loss) by `requires_grad_` and `autograd.grad`.",
        fix="`torch.func.grad` inside. Transforms nest.",
        broken=requires_grad,
        fixed=requires_grad_fixed,
        truth=lambda images, labels: loop_gradients(*requires_grad(images, labels)),
    ),
    Loud(
        name="sparse-embedding",
        error=NotImplementedError,
        symptom="Could not run 'aten::view' with arguments from the 'Sparse",
        cause="`sparse=True` makes a sparse gradient, which `vmap` cannot batch.",
        fix="`sparse=False`. Per-sample gradients are then dense: `(B, words, dim)`.",
        broken=sparse,
        fixed=sparse_fixed,
        at=lambda module: getattr(module, "sparse", False),
    ),
    Loud(
        name="layernorm-under-autocast",
        symptom="expected scalar type BFloat16 but found Float",
        cause="Autocast hands LayerNorm an input in bfloat16 and a weight in float32. `vmap` "
        "alone takes that, and `grad` alone; `vmap(grad)` does not.",
        also={
            "`vmap` of the forward runs": _autocast_for_each,
            "`grad` for one sample runs": _autocast_for_one,
        },
        fix="No autocast.",
        broken=autocast,
        fixed=autocast_fixed,
        at=lambda module: isinstance(module, nn.LayerNorm | nn.GroupNorm),
    ),
]
