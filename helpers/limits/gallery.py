"""All entries, in the order of the lesson, and their pages and index in Markdown."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from helpers.limits.entries import (
    loud_autograd,
    loud_calls,
    loud_norms,
    loud_shapes,
    loud_values,
    loud_wrappers,
    loud_writes,
    silent_calls,
    silent_faults,
    silent_held,
    silent_losses,
    silent_models,
    silent_state,
    slow,
)
from helpers.limits.entry import SEEN_ON, Entry, Loud, Silent, Slow, Verdict
from helpers.limits.sources import listing

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for module in (
        loud_values,
        loud_shapes,
        loud_norms,
        loud_writes,
        loud_autograd,
        loud_calls,
        loud_wrappers,
        silent_losses,
        silent_state,
        silent_held,
        silent_models,
        silent_faults,
        silent_calls,
        slow,
    )
    for entry in module.ENTRIES
}
"""Every entry by name: loud ones, silent ones, slow ones."""

_LASTING = " This holds for every version of torch."


class Markdown(str):
    """Text that a notebook shows as Markdown, and that prints as it is."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        # For displays without Markdown. The whole text would stand in a notebook twice.
        return "print(_) shows this as text"


def source(*functions: Callable[..., object]) -> Markdown:
    """Write the source of functions or classes."""
    return Markdown(f"```python\n{listing(*functions)}\n```")


def show(name: str, images: Tensor, labels: Tensor) -> Markdown:
    """Run an entry and write its page: code, what it did, cause, way out, code, and the check.

    Args:
        name: The entry's name.
        images: `(B, 1, 28, 28)`, float64, with B of at least 4.
        labels: `(B,)`.

    Raises:
        ValueError: There is no such entry.
    """
    if name not in ENTRIES:
        raise ValueError(f"there is no entry {name!r}: there are {', '.join(ENTRIES)}")
    entry = ENTRIES[name]
    verdict = entry.check(images, labels)
    broken, fixed = entry.code
    equal = verdict.fixed[0].upper() + verdict.fixed[1:]
    also = [f"- {says}: {held}" for says, held in verdict.also]
    lines = [
        f"```python\n{broken}\n```",
        _outcome(entry, verdict),
        f"**Cause.** {entry.cause}",
        *(["**Run too.**\n" + "\n".join(also)] if also else []),
        f"**Way out.** {entry.fix}",
        f"```python\n{fixed}\n```",
        f"{equal}.{_LASTING if entry.lasting else ''}",
    ]
    if verdict.changed:
        lines.append(f"**Changed.** {_changed(name)}")
    return Markdown("\n\n".join(lines))


def index(part: str | None = None) -> Markdown:
    """Write the table of entries: what is seen, why, the way out, and a link to the heading.

    Args:
        part: `"loud"`, `"silent"` or `"slow"`; `None` means all of them.
    """
    return _table(entry for entry in ENTRIES.values() if part in (None, entry.part))


def find(text: str) -> Markdown:
    """Write the rows of the index that a message leads to, or a word.

    Args:
        text: The message of an error or of a warning, whole or in part; or any word of the index.
    """
    said = " ".join(text.split())
    found = [
        entry
        for entry in ENTRIES.values()
        if entry.symptom in said
        or said.lower() in " ".join((entry.name, seen(entry), entry.cause, entry.fix)).lower()
    ]
    return _table(found) if found else Markdown(f"No entry of this page holds {_code(said)}.")


def seen(entry: Entry) -> str:
    """Write what one sees of an entry: an error or a warning with its message, or the number."""
    if isinstance(entry, Loud):
        return _code(f"{entry.error.__name__}: ...{entry.symptom}...")
    if isinstance(entry, Slow) and entry.warns:
        return _code(f"UserWarning: ...{entry.symptom}...")
    return f"{'wrong' if entry.part == 'silent' else 'slow'}: {entry.symptom}"


def changed(images: Tensor, labels: Tensor, names: Iterable[str] = ENTRIES) -> list[str]:
    """List the entries that do something else here than they say, each in one sentence."""
    return [_changed(name) for name in names if ENTRIES[name].check(images, labels).changed]


def distances(images: Tensor, labels: Tensor) -> dict[str, float]:
    """Say of each silent entry that gives gradients how far they are from the right ones.

    Args:
        images: `(B, 1, 28, 28)`, float64, with B of at least 4.
        labels: `(B,)`.

    Returns:
        `{name: |wrong - right| / |right|}`, the largest first.
    """
    silent = {name: entry for name, entry in ENTRIES.items() if isinstance(entry, Silent)}
    found = {name: entry.distance(images, labels) for name, entry in silent.items()}
    known = [name for name, distance in found.items() if distance is not None]
    return {name: found[name] for name in sorted(known, key=found.get, reverse=True)}


def _changed(name: str) -> str:
    return (
        f"{name} was seen on torch {SEEN_ON} on a CPU; with torch "
        f"{torch.__version__.partition('+')[0]} here it does something else"
    )


def _table(entries: Iterable[Entry]) -> Markdown:
    rows = ["| entry | what you see | cause | way out |", "|---|---|---|---|"]
    for entry in entries:
        cells = [f"[{entry.name}](#{entry.name})", seen(entry), entry.cause, entry.fix]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return Markdown("\n".join(rows))


def _outcome(entry: Entry, verdict: Verdict) -> str:
    """Say what the broken side did."""
    if entry.part == "loud":
        return f"**It raises.** {_code(verdict.broken)}"
    if entry.part == "slow":
        return f"**It runs.** {verdict.broken[0].upper()}{verdict.broken[1:]}."
    says = f"It warns of something else: ...{entry.warns}..." if entry.warns else "It says nothing."
    return f"**{says}** {entry.symptom[0].upper()}{entry.symptom[1:]}: {verdict.broken}."


def _code(text: str) -> str:
    """Write text as code, between as many backticks as its own do not end."""
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"
