"""Scores of training samples for queries, from per-sample gradients or their projections.

Each takes gradients `(N, P)` of training samples and `(Q, P)` of queries, and gives `(N, Q)`: a
high score says that a step on the training sample lowers the loss of the query.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def dot(train: Tensor, queries: Tensor) -> Tensor:
    """Compute inner products: how far a small step of SGD on one sample lowers the other's loss.

    TracIn (Pruthi et al. 2020, arXiv:2002.08484) with one checkpoint.
    """
    return train @ queries.T


def cosine(train: Tensor, queries: Tensor) -> Tensor:
    """Compute cosines, so that a sample with a large gradient does not win every query."""
    return F.normalize(train, dim=1) @ F.normalize(queries, dim=1).T


def scaled_cosine(train: Tensor, queries: Tensor) -> Tensor:
    """Compute cosines after each entry was divided by its root mean square over `train`.

    So no parameter outweighs the others, much as in Adam, and in TrackStar (Chang et al. 2024,
    arXiv:2410.17413), which also projects and whitens. An entry that is zero in all of `train`
    counts as zero.
    """
    size = train.square().mean(dim=0).sqrt()
    factors = torch.where(size > 0, 1 / size, 0)
    return cosine(train * factors, queries * factors)


def trak(train: Tensor, queries: Tensor, ridge: float = 1.0) -> Tensor:
    """Compute TRAK's scores (Park et al. 2023, arXiv:2303.14186) without their factor 1 - p.

    Args:
        train: Features of the training samples, `(N, k)`: their gradients, projected.
        queries: Features of the queries, `(Q, k)`.
        ridge: What is added to the diagonal of the kernel, relative to its mean.
    """
    kernel = train.T @ train
    kernel.diagonal().add_(ridge * kernel.diagonal().mean())
    return train @ torch.linalg.solve(kernel, queries.T)
