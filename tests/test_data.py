"""Batches of digits and of noise: shapes, ranges, always the same, what is refused."""

import pytest
import torch

from helpers import data


@pytest.mark.parametrize("dataset", data.DATASETS)
def test_shapes_types_and_ranges_are_the_same_every_time(dataset):
    state = torch.get_rng_state()
    images, labels = data.load_batch(dataset, 1797)
    assert torch.equal(torch.get_rng_state(), state)
    assert images.shape == (1797, 1, 28, 28)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert 0 <= images.min() < images.max() <= 1
    assert torch.equal(labels.unique(), torch.arange(10))
    torch.manual_seed(2)
    images_again, labels_again = data.load_batch(dataset, 1797)
    assert torch.equal(images, images_again)
    assert torch.equal(labels, labels_again)


@pytest.mark.parametrize(
    ("dataset", "size", "word"),
    [
        ("mnist", 1, "mnist"),
        ("random", 0, "batch_size"),
        ("random", 64.0, "batch_size"),
        ("digits", 1798, "1797"),
    ],
)
def test_what_cannot_be_served_is_refused(dataset, size, word):
    with pytest.raises(ValueError, match=word):
        data.load_batch(dataset, size)
