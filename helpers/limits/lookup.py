"""The entries of lesson 6, by name, message and words: symptom, cause and fix."""

import functools
import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).with_name("entries.toml")


@dataclass(frozen=True)
class Entry:
    """One way in which a per-sample gradient goes wrong."""

    name: str
    """The heading of the entry in the lesson, and what `diagnose` reports."""
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
        shown = [parts for parts in map(_fragments, self.seen) if parts]
        return max((sum(map(len, p)) for p in shown if all(x in message for x in p)), default=0)


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
    """Read the entries, by name and in the order of the lesson."""
    tables = tomllib.loads(DATA.read_text("utf-8"))
    return {name: Entry(name, tuple(table.pop("seen")), **table) for name, table in tables.items()}


def ranked(message: str, traceback: str) -> list[Entry]:
    """List the entries that show a message, best first: fitting the traceback, then the longest."""
    flat, text = " ".join(message.split()).replace("`", "'"), f"{message}\n{traceback}"
    lengths = {entry: entry.matches(flat) for entry in entries().values()}
    fits = {entry: bool(entry.near and re.search(entry.near, text, re.M)) for entry in lengths}
    lengths = {entry: length for entry, length in lengths.items() if length}
    return sorted(lengths, key=lambda x: (fits[x], not x.near, lengths[x]), reverse=True)


def match(message: str, traceback: str = "") -> Entry | None:
    """Return the entry for a whole message and the innermost lines of its traceback, or None."""
    first, text = next(iter(ranked(message, traceback)), None), f"{message}\n{traceback}"
    return first if first and (not first.near or re.search(first.near, text, re.M)) else None


def find(message: str) -> Markdown:
    """Show the entries of lesson 6 that fit a message or a few words, the most likely first.

    Args:
        message: The message of an error or a warning, or a part of it; a traceback; or a few
            words that describe the problem.
    """
    words = " ".join(message.split())
    hits = ranked(message, message) or _nearest(words)
    if not hits:
        return Markdown(f"No entry of lesson 6 holds {_code(words)}.")
    rows = [(_link(entry), _seen(entry), entry.cause, entry.fix) for entry in hits]
    return Markdown(markdown(["entry", "what you see", "cause", "fix"], rows))


def _nearest(query: str) -> list[Entry]:
    """List the three entries closest to some words, none to an error that no entry shows."""
    candidates = () if re.search(r"\w(Error|Warning): ", query) else entries().values()
    texts = {x: " ".join((x.name, *x.seen, x.cause, x.fix, x.apart)) for x in candidates}
    words = {x: _words(text) for x, text in texts.items()}
    counts = {word: 1 + sum(word in held for held in words.values()) for word in _words(query)}

    def share(words: frozenset[str]) -> float:  # rare words count more
        return sum(math.log(len(texts) / counts[word]) for word in words & counts.keys())

    names = {x: _words(f"{x.name} {x.name.replace('-', '_')}") for x in texts}
    shares = {x: share(words[x]) + share(names[x]) for x in texts}
    holds = {x: query.lower() in text.lower() for x, text in texts.items()}
    hits = [x for x in texts if holds[x] or shares[x] > share(_words(query)) / 2]
    return sorted(hits, key=lambda x: (holds[x], shares[x]), reverse=True)[:3]


def _words(text: str) -> frozenset[str]:
    """List the words of a text, and the parts of names such as `LayerNorm` and `layer_norm`."""
    parts = re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", text)
    return frozenset(re.findall(r"\w{3,}", f"{text} {parts}".lower()))


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    head, *lines = (f"| {' | '.join(row)} |" for row in (heads, *cells))
    return "\n".join([head, f"|{'---|' * len(heads)}", *lines])


def index() -> Markdown:
    """Write the list of all entries: name and symptoms."""
    return Markdown("\n".join(f"- {_link(entry)}: {_seen(entry)}" for entry in entries().values()))


def _link(entry: Entry) -> str:
    return f"[{entry.name}](#{entry.name})"


def _seen(entry: Entry) -> str:
    shown = [
        symptom if symptom.startswith(("wrong: ", "slow: ")) else _code(symptom)
        for symptom in entry.seen
    ]
    return "; ".join(shown) + (f". {entry.apart}" if entry.apart else "")


def _fragments(symptom: str) -> list[str]:
    """Return the parts of a message pattern between its dots, without the type of error."""
    shown = symptom.replace("`", "'").partition(": ...")[2]
    return [fragment for fragment in shown.split("...") if fragment]


def _code(text: str) -> str:
    """Write text as code, between enough backticks to hold its own."""
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"
