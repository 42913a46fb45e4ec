"""The networks of the lessons; all take digits `(B, 1, 28, 28)` and give logits `(B, 10)`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SimpleCNN(nn.Module):
    """Two convolutions, one pooling, two linear layers: P = 1,199,882 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3)
        self.fc1 = nn.Linear(64 * 12 * 12, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map images `(B, 1, 28, 28)` to logits `(B, 10)`."""
        features = F.relu(self.conv1(images))  # (B, 32, 26, 26)
        features = F.relu(self.conv2(features))  # (B, 64, 24, 24)
        features = F.max_pool2d(features, 2)  # (B, 64, 12, 12)
        features = F.relu(self.fc1(features.flatten(1)))  # (B, 128)
        return self.fc2(features)


class MLP(nn.Module):
    """A fully connected 784-20-10 network: P = 15,910 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(28 * 28, 20)
        self.fc2 = nn.Linear(20, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map images `(B, 1, 28, 28)`, or rows `(B, 784)`, to logits `(B, 10)`."""
        return self.fc2(F.relu(self.fc1(images.flatten(1))))


class SmallTransformer(nn.Module):
    """One block of self-attention over the 28 rows of a digit: P = 26,842 parameters.

    Every parameter belongs to a layer, positions too: tools that hook layers see them all.
    """

    def __init__(self, width: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Linear(28, width)
        self.positions = nn.Embedding(28, width)
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 3 * width)
        self.contract = nn.Linear(3 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Map images `(B, 1, 28, 28)` to logits `(B, 10)`."""
        rows = images.squeeze(1)  # (B, 28 rows, 28 pixels)
        places = torch.arange(28, device=images.device).expand(len(images), 28)
        x = self.embed(rows) + self.positions(places)
        x = x + self.project(self._attend(self.norm1(x)))
        x = x + self.contract(F.gelu(self.expand(self.norm2(x))))
        return self.head(x.mean(dim=1))

    def _attend(self, x: Tensor) -> Tensor:
        # Written out: the fused attention kernels have no batching rule and would run in a loop.
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, 28, 3, heads, width/heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


MODELS: dict[str, type[nn.Module]] = {
    "SimpleCNN": SimpleCNN,
    "MLP": MLP,
    "transformer": SmallTransformer,
}
"""By the names that commands and records have for them."""
