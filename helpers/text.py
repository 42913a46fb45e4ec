"""English text that ships with Python, and a tokenizer: the data of a small language model."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pydoc_data.topics import topics
from string import ascii_lowercase

import torch
from torch import Tensor

DATASETS = ("topics", "random")
_BEFORE_TITLE = r"(?m)^(?=\S.*\n([^\w\s])\1{2,}$)"
"""The start of a line above one that repeats a character three times or more, such as `====`."""


def load_documents(dataset: str = "topics") -> list[str]:
    """Load the sections of Python's own reference manual, from `pydoc_data.topics`.

    Topics repeat each other: only the first copy of a paragraph is kept. Sections of fewer than 400
    characters are left out; about 150 remain, with about 365,000 characters.

    Args:
        dataset: `"topics"`, or `"random"` for 150 documents of meaningless words.

    Returns:
        Documents, in the order of their topics' names; no paragraph is in two of them.

    Raises:
        ValueError: The dataset is unknown.
    """
    if dataset not in DATASETS:
        raise ValueError(f"dataset must be 'topics' or 'random', got {dataset!r}")
    if dataset == "random":
        return _random_documents()
    seen: set[str] = set()
    documents = []
    for name in sorted(topics):
        # Every second part is the group of the pattern: the character under a title.
        sections = re.split(_BEFORE_TITLE, topics[name])[::2]
        for section in sections:
            document = "\n\n".join(_new_paragraphs(section, seen))
            if len(document) >= 400:
                documents.append(document)
    return documents


def _new_paragraphs(section: str, seen: set[str]) -> list[str]:
    """List the paragraphs of a section with words that are not in `seen`, and add them there."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", section):
        text = re.sub(r"(?m)^[^\w\s]{3,}$", "", paragraph)  # without the line under a title
        words = " ".join(text.split())
        if words and words not in seen:
            seen.add(words)
            paragraphs.append(paragraph.strip("\n"))
    return paragraphs


def _random_documents() -> list[str]:
    stream = random.Random(0)
    words = []
    for _ in range(2000):
        letters = stream.choices(ascii_lowercase, k=5)
        words.append("".join(letters))
    documents = []
    for _ in range(150):
        documents.append(" ".join(stream.choices(words, k=400)))
    return documents


class _PairCounts:
    """How often each pair of neighboring tokens occurs, and in which pieces of text."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()
        self.pieces: dict[tuple[int, int], set[str]] = defaultdict(set)  # some lost it by now

    def count(self, piece: str, word: list[int], times: int) -> None:
        """Add the pairs of a piece with these tokens; with `times` below 0, take them away."""
        for pair in pairwise(word):
            self.counts[pair] += times
            self.pieces[pair].add(piece)

    def most_frequent(self) -> tuple[int, int] | None:
        """Return the pair that occurs most often, if it does twice; of several the lowest."""
        most = max(self.counts.values(), default=0)
        if most < 2:
            return None
        return min(pair for pair, count in self.counts.items() if count == most)


class BytePairs:
    """A tokenizer by byte-pair encoding: the most frequent pair of tokens becomes a new token.

    Sennrich et al. (2016), arXiv:1508.07909. A text is first split into words with the space before
    them, runs of punctuation and whitespace; no token crosses a boundary.

    Attributes:
        tokens: The bytes of each token; the first 256 are the single bytes.
    """

    _PIECES = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")

    def __init__(self, texts: Iterable[str], size: int = 1024) -> None:
        """Learn 256 to `size` tokens from texts; ties go to the pair with the lowest tokens."""
        self.tokens = [bytes([byte]) for byte in range(256)]
        self._pairs: list[tuple[int, int]] = []  # what each token after these was made of
        self._words: dict[str, list[int]] = {}  # the tokens of each piece that was seen
        frequency: Counter[str] = Counter()
        for text in texts:
            frequency.update(self._PIECES.findall(text))
        pairs = _PairCounts()
        for piece, times in frequency.items():
            self._words[piece] = list(piece.encode())
            pairs.count(piece, self._words[piece], times)

        while len(self.tokens) < size:
            pair = pairs.most_frequent()
            if pair is None:
                break
            first, second = pair
            token = len(self.tokens)
            self._pairs.append(pair)
            self.tokens.append(self.tokens[first] + self.tokens[second])
            # Only the pieces with this pair change, so only their counts do.
            for piece in pairs.pieces.pop(pair):
                word = self._words[piece]
                merged = _merged(word, pair, token)
                pairs.count(piece, word, -frequency[piece])
                pairs.count(piece, merged, frequency[piece])
                self._words[piece] = merged
            del pairs.counts[pair]

    def encode(self, text: str) -> list[int]:
        """Split a text into token ids."""
        tokens = []
        for piece in self._PIECES.findall(text):
            if piece not in self._words:
                word = list(piece.encode())
                # In the order in which the tokens were learned.
                for token, pair in enumerate(self._pairs, start=256):
                    word = _merged(word, pair, token)
                self._words[piece] = word
            tokens += self._words[piece]
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """Join tokens into text; invalid bytes become a replacement character."""
        return b"".join(self.tokens[token] for token in tokens).decode(errors="replace")


def windows(documents: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
    """Cut documents, as lists of tokens, into windows of `length + 1` tokens: `length` to predict.

    Neighboring windows share a token; a remainder shorter than a window is dropped.

    Returns:
        Windows `(N, length + 1)`, int64, and the index of each one's document, `(N,)`.
    """
    rows, owners = [], []
    for number, document in enumerate(documents):
        for start in range(0, len(document) - length, length):
            rows.append(document[start : start + length + 1])
            owners.append(number)
    # `view` gives an empty result its second dimension.
    return torch.tensor(rows, dtype=torch.int64).view(-1, length + 1), torch.tensor(owners)


def _merged(word: list[int], pair: tuple[int, int], token: int) -> list[int]:
    """Replace each occurrence of a pair by its token."""
    result: list[int] = []
    for item in word:
        result.append(item)
        if tuple(result[-2:]) == pair:
            result[-2:] = [token]
    return result
