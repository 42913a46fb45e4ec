"""The entries of the reference, page 6b, by name, message and words: symptom, cause and fix."""

import functools
import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).with_name("entries.toml")
PAGE = "06b_reference.ipynb"
"""The page of the entries, beside lesson 6."""


@dataclass(frozen=True)
class Entry:
    """One way in which a per-sample gradient goes wrong."""

    name: str
    """The heading of the entry on the page, and what `diagnose` reports."""
    seen: tuple[str, ...]
    """What one sees: `Type: ...fragment of a message...`, or `wrong: ...`, or `slow: ...`."""
    cause: str
    fix: str
    apart: str = ""
    """How to recognize it where others share its message; `""` if that is not needed."""
    near: str = field(default="", compare=False)
    """A pattern that its messages or their tracebacks hold, if a message alone says too little."""

    def matches(self, message: str) -> int:
        """Return how many characters of a message the entry's pattern covers; 0 for no match."""
        longest = 0
        for symptom in self.seen:
            fragments = _fragments(symptom)
            if all(fragment in message for fragment in fragments):
                longest = max(longest, len("".join(fragments)))
        return longest


class Markdown(str):
    """Text that a notebook renders as Markdown and that prints as it is."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        # For displays without Markdown. The whole text would appear twice in a notebook.
        return "print(_) shows this as text"


@functools.cache
def entries() -> dict[str, Entry]:
    """Read the entries, by name and in the order of the page."""
    result = {}
    for name, table in tomllib.loads(DATA.read_text("utf-8")).items():
        seen = tuple(table.pop("seen"))  # a list, with which no entry could be hashed
        result[name] = Entry(name, seen, **table)
    return result


def ranked(message: str, traceback: str) -> list[Entry]:
    """List the entries that show a message, best first: fitting the traceback, then the longest."""
    flat = " ".join(message.split()).replace("`", "'")
    text = f"{message}\n{traceback}"
    ranks: dict[Entry, tuple[bool, bool, int]] = {}
    for entry in entries().values():
        length = entry.matches(flat)
        if length:
            # An entry without a pattern is better than one whose pattern does not fit.
            ranks[entry] = (_is_near(entry, text), not entry.near, length)
    return sorted(ranks, key=ranks.__getitem__, reverse=True)


def match(message: str, traceback: str = "") -> Entry | None:
    """Return the entry for a whole message and the innermost lines of its traceback, or None."""
    candidates = ranked(message, traceback)
    if not candidates:
        return None
    best = candidates[0]
    if best.near and not _is_near(best, f"{message}\n{traceback}"):
        return None
    return best


def _is_near(entry: Entry, text: str) -> bool:
    """Tell whether a message or its traceback holds the entry's pattern, if it has one."""
    return bool(entry.near and re.search(entry.near, text, re.MULTILINE))


def find(message: str) -> Markdown:
    """Show the entries of the reference that fit a message or a few words, the most likely first.

    Args:
        message: The message of an error or a warning, or a part of it; a traceback; or a few
            words that describe the problem.
    """
    query = " ".join(message.split())
    hits = ranked(message, message) or _nearest(query)
    if not hits:
        return Markdown(f"No entry of the reference holds {_code(query)}.")
    rows = []
    for entry in hits:
        rows.append([_link(entry, PAGE), _seen(entry), entry.cause, entry.fix])
    return Markdown(markdown(["entry", "what you see", "cause", "fix"], rows))


def _nearest(query: str) -> list[Entry]:
    """List the three entries closest to some words, none to an error that no entry shows.

    An entry scores the weights of the words that it shares with the query, and once more those in
    its name. It is a hit with more than half of the score that the query's own words give, or if it
    holds the query as it stands. Entries that hold all of the words come before others.
    """
    if re.search(r"\w(Error|Warning): ", query):
        return []
    texts, words = {}, {}
    for entry in entries().values():
        parts = [entry.name, *entry.seen, entry.cause, entry.fix, entry.apart]
        texts[entry] = " ".join(parts)
        words[entry] = _words(texts[entry])
    weights = _weights(_words(query), list(words.values()))

    ranks: dict[Entry, tuple[bool, bool, float]] = {}
    for entry, text in texts.items():
        # `layer-norm` is found as layer_norm, too.
        in_name = _words(f"{entry.name} {entry.name.replace('-', '_')}")
        score = _score(words[entry], weights) + _score(in_name, weights)
        holds_query = query.lower() in text.lower()
        if holds_query or score > sum(weights.values()) / 2:
            holds_all = weights.keys() <= words[entry]
            ranks[entry] = (holds_query, holds_all, score)
    return sorted(ranks, key=ranks.__getitem__, reverse=True)[:3]


def _weights(query: frozenset[str], texts: list[frozenset[str]]) -> dict[str, float]:
    """Weigh the words of a query: those that few texts hold say the most."""
    weights = {}
    for word in query:
        holding = [text for text in texts if word in text]
        weights[word] = math.log(len(texts) / (1 + len(holding)))
    return weights


def _score(words: frozenset[str], weights: dict[str, float]) -> float:
    return sum(weights[word] for word in words & weights.keys())


def _words(text: str) -> frozenset[str]:
    """List the words of a text, and the parts of names such as `LayerNorm` and `layer_norm`."""
    parts = re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", text)
    return frozenset(re.findall(r"\w{3,}", f"{text} {parts}".lower()))


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    lines = [_line(heads), f"|{'---|' * len(heads)}"]
    for row in rows:
        escaped = [cell.replace("|", "\\|") for cell in row]  # in a table, | ends a cell
        lines.append(_line(escaped))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def index() -> Markdown:
    """Write the list of all entries, name and first symptom, with links within the page."""
    lines = []
    for entry in entries().values():
        lines.append(f"- {_link(entry)}: {_shown(entry.seen[0])}")
    return Markdown("\n".join(lines))


def _link(entry: Entry, page: str = "") -> str:
    return f"[{entry.name}]({page}#{entry.name})"


def _seen(entry: Entry) -> str:
    text = "; ".join(_shown(symptom) for symptom in entry.seen)
    return f"{text}. {entry.apart}" if entry.apart else text


def _shown(symptom: str) -> str:
    """Write a message as code, and a description as it is."""
    is_message = not symptom.startswith(("wrong: ", "slow: "))
    return _code(symptom) if is_message else symptom


def _fragments(symptom: str) -> list[str]:
    """Return the parts of a message pattern between its dots, without the type of error."""
    pattern = symptom.replace("`", "'").partition(": ...")[2]
    return [fragment for fragment in pattern.split("...") if fragment]


def _code(text: str) -> str:
    """Write text as code, between enough backticks to hold its own."""
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"
