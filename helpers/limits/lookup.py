"""The entries of lesson 6, by name, by message and by word: what is seen, why, and the fix."""

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
    """A pattern that its traceback holds, if its message alone says too little."""

    def matches(self, message: str) -> int:
        """Return how many characters of a message the entry shows; 0 if not all of its own."""
        shown = [parts for parts in map(_fragments, self.seen) if parts]
        return max((sum(map(len, p)) for p in shown if all(x in message for x in p)), default=0)


class Markdown(str):
    """Text that a notebook shows as Markdown, and that prints as it is."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        # For displays without Markdown. The whole text would appear twice in a notebook.
        return "print(_) shows this as text"


@functools.cache
def entries() -> dict[str, Entry]:
    """Read the entries, by name and in the order of the lesson."""
    told = tomllib.loads(DATA.read_text("utf-8"))
    return {name: Entry(name, tuple(each.pop("seen")), **each) for name, each in told.items()}


def ranked(message: str, traceback: str) -> list[Entry]:
    """List the entries that show a message: those first that fit the traceback and say most."""
    said = " ".join(message.split())
    found = {each: each.matches(said) for each in entries().values()}
    fits = {each: bool(each.near and re.search(each.near, traceback, re.M)) for each in found}
    found = {each: length for each, length in found.items() if length}
    return sorted(found, key=lambda x: (fits[x], not x.near, found[x]), reverse=True)


def match(message: str, traceback: str = "") -> Entry | None:
    """Return the entry that a message leads to, or None.

    Args:
        message: The message of an error or of a warning, whole.
        traceback: Files, functions and lines of the innermost code outside PyTorch, and below it.
    """
    first = next(iter(ranked(message, traceback)), None)
    return first if first and (not first.near or re.search(first.near, traceback, re.M)) else None


def find(message: str) -> Markdown:
    """Write the entries that a message or a few words lead to, the most likely first.

    Args:
        message: The message of an error or a warning, or part of it; a traceback; or words.
    """
    said = " ".join(message.split())
    found = ranked(message, message) or _nearest(said.lower())
    if not found:
        return Markdown(f"No entry of lesson 6 holds {_code(said)}.")
    rows = [(_link(each), _seen(each), each.cause, each.fix) for each in found]
    return Markdown(markdown(["entry", "what you see", "cause", "fix"], rows))


def _nearest(said: str) -> list[Entry]:
    """List three entries that hold what is said, or a third of its words; rare words count more."""
    known = entries().values()
    told = {x: " ".join((x.name, *x.seen, x.cause, x.fix, x.apart)).lower() for x in known}
    words = {x: _words(text) for x, text in told.items()}
    counts = {word: 1 + sum(word in held for held in words.values()) for word in _words(said)}

    def share(words: frozenset[str]) -> float:
        return sum(math.log(len(told) / counts[word]) for word in words & counts.keys())

    whole = share(_words(said))
    found = [x for x, text in told.items() if said in text or share(words[x]) > whole / 3]
    names = {x: _words(f"{x.name} {x.name.replace('-', '_')}") for x in found}
    return sorted(found, key=lambda x: (said not in told[x], -share(words[x]) - share(names[x])))[
        :3
    ]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w{3,}", text.lower()))


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    head, *lines = (f"| {' | '.join(row)} |" for row in (heads, *cells))
    return "\n".join([head, f"|{'---|' * len(heads)}", *lines])


def index() -> Markdown:
    """Write the list of all entries: name, and what one sees."""
    return Markdown("\n".join(f"- {_link(each)}: {_seen(each)}" for each in entries().values()))


def _link(entry: Entry) -> str:
    return f"[{entry.name}](#{entry.name})"


def _seen(entry: Entry) -> str:
    shown = [each if each.startswith(("wrong: ", "slow: ")) else _code(each) for each in entry.seen]
    return "; ".join(shown) + (f". {entry.apart}" if entry.apart else "")


def _fragments(seen: str) -> list[str]:
    """Return the parts of a message that stand between dots, without its type."""
    return [part for part in seen.partition(": ...")[2].split("...") if part]


def _code(text: str) -> str:
    """Write text as code, between as many backticks as its own do not end."""
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"
