"""Batches of digits and of noise: shapes, ranges, the same every time, and what is refused."""

import re

import pytest
import torch

from helpers import data


@pytest.mark.parametrize("batch_size", [1, 1797])
@pytest.mark.parametrize("dataset", data.DATASETS)
def test_shapes_types_and_ranges(dataset, batch_size):
    images, labels = data.load_batch(dataset, batch_size)
    assert images.shape == (batch_size, 1, 28, 28)
    assert labels.shape == (batch_size,)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert 0 <= images.min() < images.max() <= 1
    assert 0 <= labels.min() <= labels.max() <= 9
    if batch_size > 100:
        assert labels.unique().tolist() == list(range(10))


@pytest.mark.parametrize("dataset", data.DATASETS)
def test_the_same_every_time_and_from_no_stream_of_the_caller(dataset):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = data.load_batch(dataset, 5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    for tensor, again in zip(first, data.load_batch(dataset, 5), strict=True):
        assert torch.equal(tensor, again)
        tensor.zero_()  # nor does a caller's change reach the next one
    assert data.load_batch(dataset, 5)[0].any()


def test_a_batch_is_the_first_digits_and_noise_is_uniform():
    for first, all_of_them in zip(data.load_batch(), data.load_digits(), strict=True):
        assert torch.equal(first, all_of_them[:64])
    images, _ = data.load_batch("random", 2000)
    assert 0.49 < images.mean() < 0.51
    assert not torch.equal(images[0], images[1])


def test_the_device_is_passed_on():
    for tensor in (*data.load_batch("random", 2, "meta"), *data.load_digits("meta")):
        assert tensor.device == torch.device("meta")


COUNT = "batch_size must be a whole number, at least 1, got"
REFUSED = [
    *((name, 1, f"must be 'digits' or 'random', got {name!r}") for name in ("mnist", "", None)),
    *(("random", size, f"{COUNT} {size!r}") for size in (0, -1, "64", 1.5, 64.0, None, True)),
    ("digits", 0, f"{COUNT} 0"),
    ("digits", 1798, "the digits are 1797 samples, and 1798 were asked for: choose at most 1797"),
]


@pytest.mark.parametrize("function", [data.check, data.load_batch])
@pytest.mark.parametrize(("dataset", "batch_size", "sentence"), REFUSED, ids=str)
def test_what_cannot_be_served_is_refused(dataset, batch_size, sentence, function):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        function(dataset, batch_size)
