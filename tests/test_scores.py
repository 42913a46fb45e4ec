"""Scores from gradients: their values in closed form, and what they do not depend on."""

import pytest
import torch

from helpers import scores

SCORES = (scores.dot, scores.cosine, scores.scaled_cosine, scores.trak)


def rows(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("score", SCORES)
def test_a_score_is_that_of_one_sample_and_one_query(score):
    train, queries = rows(6, 4), rows(9, 4)[6:]
    found = score(train, queries)
    assert found.shape == (6, 3)
    torch.testing.assert_close(score(train, queries[1:2])[:, 0], found[:, 1])
    torch.testing.assert_close(score(train.flip(0), queries), found.flip(0))


def test_values():
    train, queries = rows(6, 4), rows(9, 4)[6:]
    cosines = torch.cosine_similarity(train[:, None], queries, dim=2)
    torch.testing.assert_close(scores.cosine(train, queries), cosines)
    torch.testing.assert_close(scores.dot(train, queries), (train[:, None] * queries).sum(dim=2))
    units = torch.tensor([1e-3, 1.0, 50.0, 0.0])  # of parameters; one has no gradient
    scaled = scores.scaled_cosine(train * units, queries * units)
    torch.testing.assert_close(scaled, scores.scaled_cosine(train[:, :3], queries[:, :3]))
    inverse = (train.T @ train + 0.5 * train.square().sum() / 4 * torch.eye(4)).inverse()
    torch.testing.assert_close(scores.trak(train, queries, 0.5), train @ inverse @ queries.T)
