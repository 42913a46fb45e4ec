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
        stream = random.Random(0)
        words = ["".join(stream.choices(ascii_lowercase, k=5)) for _ in range(2000)]
        return [" ".join(stream.choices(words, k=400)) for _ in range(150)]
    seen: set[str] = set()
    documents = []
    underlined = r"(?m)^(?=\S.*\n([^\w\s])\1{2,}$)"
    for name in sorted(topics):
        for section in re.split(underlined, topics[name])[::2]:  # the group comes between
            paragraphs = []
            for paragraph in re.split(r"\n\s*\n", section):
                words = " ".join(re.sub(r"(?m)^[^\w\s]{3,}$", "", paragraph).split())
                if words and words not in seen:
                    seen.add(words)
                    paragraphs.append(paragraph.strip("\n"))
            documents.append("\n\n".join(paragraphs))
    return [document for document in documents if len(document) >= 400]


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
        frequency = Counter(piece for text in texts for piece in self._PIECES.findall(text))
        self._words = {piece: [*piece.encode()] for piece in frequency}
        pairs: Counter[tuple[int, int]] = Counter()
        words_with_pair = defaultdict(set)  # or without it by now

        def count(piece: str, sign: int) -> None:
            for pair in pairwise(self._words[piece]):
                pairs[pair] += sign * frequency[piece]
                words_with_pair[pair].add(piece)

        for piece in frequency:
            count(piece, 1)
        while len(self.tokens) < size and max(pairs.values(), default=0) > 1:
            pair = min(pairs, key=lambda item: (-pairs[item], item))
            self._pairs.append(pair)
            self.tokens.append(self.tokens[pair[0]] + self.tokens[pair[1]])
            for piece in words_with_pair.pop(pair):
                count(piece, -1)
                self._words[piece] = _merged(self._words[piece], pair, len(self.tokens) - 1)
                count(piece, 1)
            del pairs[pair]

    def encode(self, text: str) -> list[int]:
        """Split a text into token ids."""
        tokens = []
        for piece in self._PIECES.findall(text):
            if piece not in self._words:
                self._words[piece] = [*piece.encode()]
                for token, pair in enumerate(self._pairs, start=256):
                    self._words[piece] = _merged(self._words[piece], pair, token)
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
        starts = range(0, len(document) - length, length)
        rows += [document[start : start + length + 1] for start in starts]
        owners += [number] * len(starts)
    return torch.tensor(rows, dtype=torch.int64).view(-1, length + 1), torch.tensor(owners)


def _merged(word: list[int], pair: tuple[int, int], token: int) -> list[int]:
    """Replace each occurrence of a pair by its token."""
    result: list[int] = []
    for item in word:
        result.append(item)
        if tuple(result[-2:]) == pair:
            result[-2:] = [token]
    return result
