"""The networks of the lessons: from digits `(B, 1, 28, 28)` to logits `(B, 10)`; one for text."""

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


class GPT(nn.Module):
    """A small language model whose output layer is its token embedding.

    With the default sizes P = 169,728 parameters, 65,536 of them in the embedding.
    """

    def __init__(
        self,
        vocabulary: int = 1024,
        context: int = 64,
        width: int = 64,
        heads: int = 4,
        depth: int = 2,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(_Block(width, heads))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, tokens: Tensor, texts: Tensor | None = None) -> Tensor:
        """Map tokens to logits of the next token, `(B, T, vocabulary)`.

        Args:
            tokens: `(B, T)`, int64.
            texts: If a row holds several texts, the index of each token's text, `(B, T)`: a token
                sees only its own text, and its position counts from that text's start.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = positions > positions[:, None]  # (T, T): later tokens
        positions = positions.expand(tokens.shape)
        if texts is not None:
            hidden = hidden | (texts[:, :, None] != texts[:, None])  # (B, T, T)
            positions = (~hidden).sum(dim=2) - 1
            hidden = hidden[:, None]  # shared by all heads
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x, hidden)
        return F.linear(self.norm(x), self.tokens.weight)  # tied: the embedding a second time


class _Block(nn.Module):
    """Causal self-attention, and two linear layers; at initialization it is the identity."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        for layer in (self.qkv, self.expand):
            nn.init.normal_(layer.weight, std=width**-0.5)
        for layer in (self.project, self.contract):
            nn.init.zeros_(layer.weight)
        for layer in (self.qkv, self.expand, self.project, self.contract):
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        x = x + self.project(_attend(self.qkv(self.norm1(x)), self.heads, hidden))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


def _attend(qkv: Tensor, heads: int, hidden: Tensor) -> Tensor:
    """Map queries, keys and values `(B, T, 3 * width)` to `(B, T, width)`.

    `hidden`, `(T, T)` or `(B, 1, T, T)`, is true where a query must not see a key.
    """
    # Written out: the fused attention kernels have no batching rule and would run in a loop.
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (B, heads, T, ...) each
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
    return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


MODELS: dict[str, type[nn.Module]] = {"SimpleCNN": SimpleCNN, "MLP": MLP}
"""The digit classifiers, by their names in commands and records."""
