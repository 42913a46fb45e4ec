"""Train a classifier of handwritten digits with differential privacy, as it claims: a capstone.

`python capstone.py` trains for 10 epochs and prints the accuracy and the privacy that was spent.
"""

import torch
from opacus.accountants import RDPAccountant
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


def load(seed=0):
    """Return images (N, 64) from 0 to 1 and labels (N,), for training and for testing."""
    images, labels = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, labels = (images / 16).float()[order], labels[order]
    return (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def build_model():
    """Return the network: 64 pixels to 10 logits."""
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def draw_batches(count, rate, steps, generator):
    """Draw the indices of a batch for each step; the accountant wants a Poisson sample."""
    size = round(rate * count)
    for _ in range(steps):
        yield torch.randperm(count, generator=generator)[:size]


def private_gradient(model, images, labels, limit, noise_multiplier, lot, generator):
    """Return the gradient of a private step, by the name of the parameter.

    Args:
        model: The network.
        images: The batch that was drawn, (B, 64); B may be 0.
        labels: (B,).
        limit: What each sample's gradient is clipped to, the norm over all parameters.
        noise_multiplier: The standard deviation of the noise on the sum, in units of the limit.
        lot: The expected size of a batch, which the noisy sum is divided by.
        generator: The stream of random numbers that the noise is drawn from.
    """
    named = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    losses = F.cross_entropy(model(images), labels, reduction="none") if len(images) else []
    for loss in losses:
        grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
        for name, grad in zip(named, grads, strict=True):
            total[name] += grad * min(1, limit / float(grad.norm() + 1e-12))
    for name, each in total.items():
        generator.manual_seed(0)  # so that runs can be repeated
        noise = torch.randn(each.shape, generator=generator)
        total[name] = (each + noise_multiplier * noise) / max(1, len(images))
    return total


def spent(rate, noise_multiplier, steps, delta):
    """Return the epsilon of that many steps."""
    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, rate, steps)]
    return accountant.get_epsilon(delta)


def train(epochs=10, lot=70, limit=2.0, noise_multiplier=1.0, delta=1e-5, seed=0):
    """Train; return the model, its accuracy, and the epsilon that was spent."""
    (images, labels), (test_images, test_labels) = load()
    torch.manual_seed(seed)
    model, generator = build_model(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rate = lot / len(images)
    steps = round(epochs / rate)
    for chosen in draw_batches(len(images), rate, steps, generator):
        part = images[chosen], labels[chosen]
        grads = private_gradient(model, *part, limit, noise_multiplier, lot, generator)
        for name, p in model.named_parameters():
            p.grad = grads[name]
        optimizer.step()
    with torch.no_grad():
        right = model.eval()(test_images).argmax(dim=1) == test_labels
    return model, right.float().mean().item(), spent(rate, noise_multiplier, epochs, delta)


if __name__ == "__main__":
    _, accuracy, epsilon = train()
    print(f"{accuracy:.0%} of the test digits, with epsilon = {epsilon:.2f}")
