"""Loud entries: a sample's value written where all samples share one tensor; random draws."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from helpers.gradients import loop_gradients
from helpers.limits.bare import Case, Classifier, bare_gradients, sequences, tokens
from helpers.limits.entry import Loud, raises

_BROADCAST = "doesn't match the broadcast shape"


def into_buffer(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1, 28, 28))

        def forward(self, images):
            self.seen += images[0]
            return super().forward(images - self.seen / 2)

    return Case(Model().to(images), F.cross_entropy, images, labels)


def into_buffer_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model, loss_fn, *_ = into_buffer(images, labels)
    params = {name: p.detach() for name, p in model.named_parameters()}
    buffers = {name: b.expand(len(images), *b.shape) for name, b in model.named_buffers()}

    def compute_loss(params, buffers, sample, target):
        state = (params, {name: b.clone() for name, b in buffers.items()})
        predictions = functional_call(model, state, (sample.unsqueeze(0),))
        return loss_fn(predictions, target.unsqueeze(0))

    compute = vmap(grad(compute_loss), in_dims=(None, 0, 0, 0))  # each sample, its own buffers
    return compute(params, buffers, images, labels)


def into_zeros(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            total = torch.zeros(len(images), 10, dtype=images.dtype, device=images.device)
            return total.add_(super().forward(images))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def into_zeros_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            total = images.new_zeros(len(images), 10)
            return total.add_(super().forward(images))

    return Case(Model().to(images), F.cross_entropy, images, labels)


def copied(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            padded = torch.zeros(len(images), 12, dtype=images.dtype, device=images.device)
            padded[:, :10] = super().forward(images)
            return padded

    return Case(Model().to(images), F.cross_entropy, images, labels)


def _copied_over(image: Tensor) -> Tensor:
    return torch.zeros(image.shape, dtype=image.dtype, device=image.device).copy_(image)


def copied_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(Classifier):
        def forward(self, images):
            padded = images.new_zeros(len(images), 12)
            padded[:, :10] = super().forward(images)
            return padded

    return Case(Model().to(images), F.cross_entropy, images, labels)


class _Recurrent(nn.Module):
    """A GRU over rows of ink, read at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(28, 6, batch_first=True)
        self.fc = nn.Linear(6, 10)

    def forward(self, rows: Tensor) -> Tensor:
        return self.fc(self.gru(rows)[0][:, -1])


def recurrent(images: Tensor, labels: Tensor) -> Case:
    model = _Recurrent().to(images)  # self.fc(self.gru(rows)[0][:, -1])
    return Case(model, F.cross_entropy, sequences(images), labels)


def _called_without_state(kind: type[nn.Module], images: Tensor, labels: Tensor) -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.fc = kind(28, 6), nn.Linear(6, 10)

        def forward(self, rows):
            steps = rows[:, 0] if isinstance(self.layer, nn.RNNCellBase) else rows.transpose(0, 1)
            result = self.layer(steps)
            state = result[0] if isinstance(result, tuple) else result
            return self.fc(state if state.dim() == 2 else state[-1])

    return Case(Model().to(images), F.cross_entropy, sequences(images), labels)


def recurrent_fixed(images: Tensor, labels: Tensor) -> Case:
    class Model(_Recurrent):
        def forward(self, rows):
            start = rows.new_zeros(1, len(rows), 6)
            return self.fc(self.gru(rows, start)[0][:, -1])

    return Case(Model().to(images), F.cross_entropy, sequences(images), labels)


def _words(**options: object) -> nn.Module:
    return nn.Sequential(nn.Embedding(16, 6, **options), nn.Flatten(), nn.Linear(120, 10))


def max_norm(images: Tensor, labels: Tensor) -> Case:
    model = _words(max_norm=1.0).to(images)
    return Case(model, F.cross_entropy, tokens(images), labels)


def max_norm_fixed(images: Tensor, labels: Tensor) -> Case:
    model = _words().to(images)
    with torch.no_grad():  # after each step of the optimizer
        model[0].weight.copy_(model[0].weight.renorm(2, 0, 1.0))
    return Case(model, F.cross_entropy, tokens(images), labels)


def random_draws(images: Tensor, labels: Tensor) -> Case:
    model = nn.Sequential(nn.Dropout(0.5), Classifier()).to(images)
    return Case(model, F.cross_entropy, images, labels)


def random_draws_fixed(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    case = random_draws(images, labels)
    torch.manual_seed(1)
    return bare_gradients(*case, randomness="different")  # "same": one draw for all samples


def _random_draws_truth(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Differentiate the classifier at the images that dropout leaves, drawn as `vmap` does."""
    model = random_draws(images, labels).model
    torch.manual_seed(1)
    dropped = F.dropout(images[:, None], 0.5)[:, 0]
    gradients = loop_gradients(model[1], F.cross_entropy, dropped, labels)
    return {f"1.{name}": gradient for name, gradient in gradients.items()}


ENTRIES = [
    Loud(
        name="in-place-into-zeros",
        symptom=_BROADCAST,
        cause="`torch.zeros` inside a transform makes one tensor for all samples. A value of each "
        "sample does not fit into it.",
        fix="`new_zeros` or `zeros_like` of a tensor that belongs to the sample.",
        broken=into_zeros,
        fixed=into_zeros_fixed,
    ),
    Loud(
        name="copy-into-zeros",
        symptom="has more elements than `self`. This happened due to `other` being vmapped over",
        cause="An assignment to a slice writes a sample's value into a tensor that was made for "
        "all samples.",
        also={
            "`copy_` raises the same": lambda images, labels: raises(
                "happened due to `other` being vmapped over", lambda: vmap(_copied_over)(images)
            )
        },
        fix="`new_zeros` of a tensor that belongs to the sample.",
        broken=copied,
        fixed=copied_fixed,
    ),
    Loud(
        name="sample-into-buffer",
        symptom=_BROADCAST,
        cause="The forward writes a sample's value into a buffer, which all samples share.",
        fix="A buffer for each sample: expand it to `(B, *shape)`, `in_dims=0`, and clone it "
        "inside. `func_gradients` does.",
        broken=into_buffer,
        fixed=into_buffer_fixed,
        truth=lambda images, labels: loop_gradients(*into_buffer(images, labels)),
    ),
    Loud(
        name="recurrent-layer",
        symptom=_BROADCAST,
        cause="A recurrent layer makes its first state with `torch.zeros`: one for all samples.",
        also={
            f"`{kind.__name__}` raises the same": (
                lambda *few, kind=kind: raises(
                    _BROADCAST, lambda: bare_gradients(*_called_without_state(kind, *few))
                )
            )
            for kind in (nn.RNN, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell)
        },
        fix="Hand in a state made with `new_zeros`. `func_gradients` does. An LSTM in float32 on "
        "a CPU is another matter: `lstm-fallback`.",
        broken=recurrent,
        fixed=recurrent_fixed,
        at=lambda module: isinstance(module, nn.RNNBase | nn.RNNCellBase),
    ),
    Loud(
        name="embedding-max-norm",
        symptom="vmap: aten::embedding_renorm_(self, *extra_args) is not possible",
        cause="`max_norm` shortens the rows of the weight that a sample looks up, in place, in "
        "the forward.",
        fix="Leave it out, and shorten the rows after each step of the optimizer.",
        broken=max_norm,
        fixed=max_norm_fixed,
        at=lambda module: getattr(module, "max_norm", None) is not None,
    ),
    Loud(
        name="random-draws",
        symptom="vmap: called random operation while in randomness error mode",
        cause="Dropout, or another draw. Nothing says whether the samples share it.",
        fix='`randomness="different"` to train, `"same"` to compare samples, or `model.eval()`.',
        broken=random_draws,
        fixed=random_draws_fixed,
        truth=_random_draws_truth,
    ),
]
