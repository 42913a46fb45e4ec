"""The entries of lesson 6, by name, by message and by word: what is seen, why, and the way out."""

import functools
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
    """How to tell it from other entries with the same message; `""` if there are none."""
    near: str = field(default="", compare=False)
    """A pattern in the last lines of its traceback, where others share its message."""

    @property
    def part(self) -> str:
        """What it does: `"loud"`, `"silent"` or `"slow"`."""
        kinds = {"wrong": "silent", "slow": "slow", "UserWarning": "slow"}
        return kinds.get(self.seen[0].partition(":")[0], "loud")

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
        # For displays without Markdown. The whole text would stand in a notebook twice.
        return "print(_) shows this as text"


@functools.cache
def entries() -> dict[str, Entry]:
    """Read the entries, by name and in the order of the lesson."""
    told = tomllib.loads(DATA.read_text("utf-8"))
    return {name: Entry(name, tuple(each.pop("seen")), **each) for name, each in told.items()}


def match(message: str, traceback: str = "") -> Entry | None:
    """Return the entry that a message leads to; of several, the one that a traceback speaks for.

    Args:
        message: The message of an error or of a warning, whole.
        traceback: Files, functions and lines of code, a line each, of the innermost code that is
            not torch's, and of what it called.
    """
    said = " ".join(message.split())
    found = [each for each in entries().values() if each.matches(said)]
    spoken_for = [each for each in found if each.near and re.search(each.near, traceback, re.M)]
    others = [each for each in found if not each.near]
    return max(spoken_for or others, key=lambda each: each.matches(said), default=None)


def find(message: str) -> Markdown:
    """Write the entries that a message leads to, or a word.

    Args:
        message: The message of an error or of a warning, whole or in part; or words, all of which
            a heading, a symptom, a cause or a way out holds.
    """
    said = " ".join(message.split())
    told = {
        each: " ".join((each.name, *each.seen, each.cause, each.fix)).lower()
        for each in entries().values()
    }
    found = (
        [each for each in told if each.matches(said)]
        or [each for each, text in told.items() if said.lower() in text]
        or [each for each, text in told.items() if all(w in text for w in said.lower().split())]
    )
    if not found:
        return Markdown(f"No entry of lesson 6 holds {_code(said)}.")
    several = len(found) > 1
    rows = [(_link(e), _seen(e, several=several), e.cause, e.fix) for e in found]
    return Markdown(markdown(["entry", "what you see", "cause", "way out"], rows))


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table."""
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    head, *lines = (f"| {' | '.join(row)} |" for row in (heads, *cells))
    return "\n".join([head, f"|{'---|' * len(heads)}", *lines])


def index() -> Markdown:
    """Write the list of all entries: name, what one sees, and how to tell it from others."""
    lines = (f"- {_link(each)}: {_seen(each, several=True)}" for each in entries().values())
    return Markdown("\n".join(lines))


def _link(entry: Entry) -> str:
    return f"[{entry.name}](#{entry.name})"


def _seen(entry: Entry, *, several: bool) -> str:
    shown = [each if each.startswith(("wrong: ", "slow: ")) else _code(each) for each in entry.seen]
    return "; ".join(shown) + (f". {entry.apart}" if several and entry.apart else "")


def _fragments(seen: str) -> list[str]:
    """Return the parts of a message that stand between dots, without its type."""
    return [part for part in seen.partition(": ...")[2].split("...") if part]


def _code(text: str) -> str:
    """Write text as code, between as many backticks as its own do not end."""
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"
