"""Documents, their tokens and windows: what comes back, what is merged, what is left out."""

import pytest

from helpers import text


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
