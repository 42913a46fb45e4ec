"""The two networks of the lessons; both take digits `(B, 1, 28, 28)` and give logits `(B, 10)`."""

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
