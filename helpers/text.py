"""English that every Python brings, cut into tokens: the data of a small language model."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from string import ascii_lowercase

import torch
from torch import Tensor

DATASETS = ("topics", "random")


def load_documents(dataset: str = "topics", shortest: int = 400) -> list[str]:
    """Load the sections of Python's own reference manual, from `pydoc_data.topics`.

    The topics repeat each other, so that a paragraph is kept where it comes first. What is there
    differs by the version of Python: about 150 documents, 365,000 characters and more.

    Args:
        dataset: `"topics"`, or `"random"` for 150 documents of words that mean nothing.
        shortest: How many characters a document has at least.

    Returns:
        Documents, in the order of their topics' names; no paragraph is in two of them.

    Raises:
        ValueError: The dataset is unknown.
    """
    if dataset not in DATASETS:
        raise ValueError(f"dataset must be 'topics' or 'random', got {dataset!r}")
    if dataset == "random":
        stream = random.Random(0)
        words = ["".join(stream.choices(ascii_lowercase, k=5)) for _ in range(2000)]
        return [" ".join(stream.choices(words, k=400)) for _ in range(150)]
    from pydoc_data.topics import topics

    seen: set[str] = set()
    documents = []
    underlined = r"(?m)^(?=\S.*\n([^\w\s])\1{2,}$)"
    for name in sorted(topics):
        for section in re.split(underlined, topics[name])[::2]:  # the group comes between
            kept = []
            for paragraph in re.split(r"\n\s*\n", section):
                words = " ".join(re.sub(r"(?m)^[^\w\s]{3,}$", "", paragraph).split())
                if words and words not in seen:
                    seen.add(words)
                    kept.append(paragraph.strip("\n"))
            documents.append("\n\n".join(kept))
    return [document for document in documents if len(document) >= shortest]


class BytePairs:
    """A tokeniser by byte-pair encoding: the pair that is met most often becomes a token.

    Sennrich et al. (2016), arXiv:1508.07909. A text is first cut into words with the space before
    them, runs of signs, and runs of white space; no token goes beyond one of these.

    Attributes:
        tokens: The bytes of each token; the first 256 are the single bytes.
    """

    _PIECES = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")

    def __init__(self, texts: Iterable[str], size: int = 1024) -> None:
        """Learn at most `size` tokens from texts; ties go to the pair with the lowest tokens."""
        self.tokens = [bytes([byte]) for byte in range(256)]
        self._ranks: dict[tuple[int, int], int] = {}
        self._known: dict[str, list[int]] = {}
        counts = Counter(piece for text in texts for piece in self._PIECES.findall(text))
        words = [[*piece.encode()] for piece in counts]
        weights = list(counts.values())
        pairs: Counter[tuple[int, int]] = Counter()
        places = defaultdict(set)  # the words in which a pair may be
        for index, word in enumerate(words):
            for pair in pairwise(word):
                pairs[pair] += weights[index]
                places[pair].add(index)
        while len(self.tokens) < size:
            pair = min(pairs, key=lambda each: (-pairs[each], each), default=None)
            if pair is None or pairs[pair] < 2:
                break
            token = self._ranks[pair] = len(self.tokens)
            self.tokens.append(self.tokens[pair[0]] + self.tokens[pair[1]])
            for index in places.pop(pair):
                for old in pairwise(words[index]):
                    pairs[old] -= weights[index]
                words[index] = _merged(words[index], pair, token)
                for new in pairwise(words[index]):
                    pairs[new] += weights[index]
                    places[new].add(index)
            del pairs[pair]

    def encode(self, text: str) -> list[int]:
        """Cut a text into tokens, by their numbers."""
        return [token for piece in self._PIECES.findall(text) for token in self._encoded(piece)]

    def decode(self, tokens: Iterable[int]) -> str:
        """Put tokens together to text; a part of a character becomes a replacement sign."""
        return b"".join(self.tokens[token] for token in tokens).decode(errors="replace")

    def _encoded(self, piece: str) -> list[int]:
        if piece not in self._known:
            word = [*piece.encode()]
            while len(word) > 1:
                pair = min(pairwise(word), key=self._rank)
                if pair not in self._ranks:
                    break
                word = _merged(word, pair, self._ranks[pair])
            self._known[piece] = word
        return self._known[piece]

    def _rank(self, pair: tuple[int, int]) -> float:
        return self._ranks.get(pair, float("inf"))


def windows(documents: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
    """Cut documents into windows of `length + 1` tokens: inputs, and what comes next.

    Two windows of a document share one token, the last target of the first; the end of a document
    that fills no window is left out.

    Args:
        documents: The tokens of each.
        length: How many tokens a window predicts.

    Returns:
        Windows `(N, length + 1)`, int64, and the number of each one's document, `(N,)`.
    """
    rows, owners = [], []
    for number, document in enumerate(documents):
        starts = range(0, len(document) - length, length)
        rows += [document[start : start + length + 1] for start in starts]
        owners += [number] * len(starts)
    return torch.tensor(rows, dtype=torch.int64).view(-1, length + 1), torch.tensor(owners)


def _merged(word: list[int], pair: tuple[int, int], token: int) -> list[int]:
    """Replace each occurrence of a pair by its token."""
    result: list[int] = []
    place = 0
    while place < len(word):
        found = tuple(word[place : place + 2]) == pair
        result.append(token if found else word[place])
        place += 1 + found
    return result
