"""Batches of digits and of noise, and text: shapes, ranges, always the same, what is refused."""

import pytest
import torch

from helpers import data, text


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


@pytest.mark.parametrize("dataset", text.DATASETS)
def test_text_comes_back_from_its_tokens_and_no_paragraph_twice(dataset):
    documents = text.load_documents(dataset)
    tokeniser = text.BytePairs(documents, 300)
    assert len(tokeniser.tokens) == 300
    for document in (documents[0], documents[-1], "", "Ünïcode 😀\t\n  of no document\n"):
        tokens = tokeniser.encode(document)
        assert tokeniser.decode(tokens) == document
    assert len(tokeniser.encode(documents[0])) < 0.9 * len(documents[0])
    paragraphs = "\n\n".join(documents).split("\n\n")
    assert len(documents) > 100
    assert len(set(paragraphs)) == len(paragraphs)


def test_the_pair_that_is_met_most_often_becomes_a_token():
    learned = text.BytePairs(["abab abab", "abcd"], 400).tokens[256:]
    assert learned == [b"ab", b"abab"]  # no other pair is met twice


def test_windows_hand_each_token_on_once():
    documents = [list(range(7)), list(range(10, 12)), list(range(20, 24))]
    windows, owners = text.windows(documents, 3)
    assert windows.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [20, 21, 22, 23]]
    assert owners.tolist() == [0, 0, 2]
    assert text.windows([[1]], 3)[0].shape == (0, 4)
