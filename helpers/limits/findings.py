"""What `diagnose` returns: findings, with the entries of lesson 6, and a conclusion."""

import textwrap
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from helpers.limits.lookup import entries, markdown, match
from helpers.transforms.fallback import find_place

_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Finding:
    """One measured problem of the bare composition."""

    where: str  # names of modules, parameters, buffers, attributes; or the loss, model, data
    measured: str  # what was seen, with its numbers or its message
    entry: str = "unknown"  # its name in lesson 6


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and how `func_gradients` compares with the loop."""

    findings: tuple[Finding, ...]
    conclusion: str

    def __str__(self) -> str:
        lines = []
        for where, measured, entry, *explained in self._rows():
            lines += [f"{where}: {measured} ({entry})", *(f"    {x}" for x in explained if x)]
        lines = lines or ["nothing found"]
        return "\n".join([*lines, f"compared with the loop: {self.conclusion}"])

    def _repr_markdown_(self) -> str:
        heads = ["where", "measured", "entry", "cause", "fix"]
        rows = [(f"`{where}`", *others) for where, *others in self._rows()]
        table = markdown(heads, rows) if rows else "Nothing found."
        return f"{table}\n\n**Compared with the loop.** {self.conclusion}."

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """List the findings, equal ones merged, each with the cause and fix of its entry."""
        locations: dict[tuple[str, str], list[str]] = {}
        for finding in self.findings:
            locations.setdefault((finding.measured, finding.entry), []).append(finding.where)
        for (measured, name), where in locations.items():
            entry = entries().get(name)
            explained = (entry.cause, entry.fix) if entry else ("", "")
            yield (", ".join(where), measured, name, *explained)

    __repr__ = __str__


def finding_of(error: Exception, model: nn.Module) -> Finding:
    """Look up an error by its message and the end of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [i for i, frame in enumerate(frames) if not frame.filename.startswith(_TORCH)]
    end = "\n".join(f"{f.filename}\n{f.name}\n{f.line}" for f in frames[outside[-1] :])
    entry = match(str(error), f"vmap\n{end}")  # under which all that is diagnosed runs
    name = entry.name if entry else Finding.entry
    return Finding(find_place(error, model), f"raises {described(error)}", name)


def described(error: Exception) -> str:
    """Format an error in one line."""
    message = textwrap.shorten(str(error), 100, placeholder=" ...")
    return f"{type(error).__name__}: {message}"


def format_names(names: Iterable[str]) -> str:
    """Write three names and the number of others."""
    names = list(dict.fromkeys(names))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def format_largest(errors: dict[str, float]) -> str:
    """Format the largest of several relative errors."""
    return f"by up to {max(errors.values()):.1e} of the largest entry"
