"""What `diagnose` returns: findings with their entries, a conclusion, and the checks it made."""

import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from helpers.limits.lookup import entries, markdown, match
from helpers.transforms.fallback import find_place

_TORCH = str(Path(torch.__file__).parent)
_SHOWN = 3
"""How many names are written out; of more, only the number."""


@dataclass(frozen=True)
class Finding:
    """One measured problem of the bare composition."""

    where: str  # names of modules, parameters, buffers, attributes; or the loss, model, data
    measured: str  # what was seen, with its numbers or its message
    entry: str = "unknown"  # its name in the reference


class CannotCheckError(Exception):
    """A check cannot be made, or would tell nothing; the message says why."""


@dataclass
class Checks:
    """What the checks have found so far, which of them ran, and why the others did not."""

    findings: list[Finding] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def make(self, name: str, check: Callable[..., Iterable[Finding]], *args: object) -> None:
        """Make a check, which returns what it finds or raises `CannotCheckError`."""
        try:
            self.findings.extend(check(*args))
        except CannotCheckError as reason:
            self.skipped[name] = str(reason)
        else:
            self.ran.append(name)


@dataclass(frozen=True)
class _Row:
    """What is shown of equal findings: the places together, with the cause and fix of the entry."""

    where: str
    measured: str
    entry: str
    cause: str
    fix: str


@dataclass(frozen=True)
class Diagnosis:
    """What was found, how `func_gradients` compares with the loop, and what was checked."""

    findings: tuple[Finding, ...]
    conclusion: str
    ran: tuple[str, ...] = ()
    """The checks that were made."""
    skipped: dict[str, str] = field(default_factory=dict)
    """The checks that could not be made, each with the reason."""

    def __str__(self) -> str:
        lines = []
        for row in self._rows():
            lines.append(f"{row.where}: {row.measured} ({row.entry})")
            for explanation in (row.cause, row.fix):
                if explanation:
                    lines.append(f"    {explanation}")
        if not lines:
            lines.append("nothing found")
        lines.append(f"compared with the loop: {self.conclusion}")
        for label, text in self._checks():
            lines.append(f"{label}: {text}")
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        rows = []
        for row in self._rows():
            rows.append([f"`{row.where}`", row.measured, row.entry, row.cause, row.fix])
        table = "Nothing found."
        if rows:
            table = markdown(["where", "measured", "entry", "cause", "fix"], rows)
        paragraphs = [table, f"**Compared with the loop.** {self.conclusion}."]
        for label, text in self._checks():
            paragraphs.append(f"**{label.capitalize()}.** {text}.")
        return "\n\n".join(paragraphs)

    def _checks(self) -> Iterator[tuple[str, str]]:
        """Yield a line for the checks that ran, and one for each reason that others did not."""
        if self.ran:
            yield "checked", ", ".join(self.ran)
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            yield "not checked", f"{', '.join(names)} ({reason})"

    def _rows(self) -> Iterator[_Row]:
        locations: dict[tuple[str, str], list[str]] = {}
        for finding in self.findings:
            locations.setdefault((finding.measured, finding.entry), []).append(finding.where)
        for (measured, name), where in locations.items():
            entry = entries().get(name)  # none for an unknown problem
            cause = entry.cause if entry else ""
            fix = entry.fix if entry else ""
            yield _Row(", ".join(where), measured, name, cause, fix)

    __repr__ = __str__


def finding_of(error: Exception, model: nn.Module) -> Finding:
    """Look up an error by its message and the end of its traceback."""
    # The end starts at the innermost frame outside torch: the line of the model or the loss.
    end: list[str] = []
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith(_TORCH):
            end = []
        end.append(f"{frame.filename}\n{frame.name}\n{frame.line}")
    # Patterns of entries may ask for `vmap`, under which all that is diagnosed runs.
    entry = match(str(error), "\n".join(["vmap", *end]))
    name = entry.name if entry else Finding.entry
    return Finding(find_place(error, model), f"raises {described(error)}", name)


def described(error: Exception) -> str:
    """Format an error in one line."""
    message = textwrap.shorten(str(error), 100, placeholder=" ...")
    return f"{type(error).__name__}: {message}"


def format_names(names: Iterable[str]) -> str:
    """Write the first names, each once, and the number of others."""
    unique = list(dict.fromkeys(names))
    text = ", ".join(unique[:_SHOWN])
    others = len(unique) - _SHOWN
    return f"{text} and {others} more" if others > 0 else text


def format_largest(errors: dict[str, float]) -> str:
    """Format the largest of several relative errors."""
    return f"by up to {max(errors.values()):.1e} of the largest entry"
