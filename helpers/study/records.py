"""Records of measurements as files: what was measured, on which machine, with what, and when."""

import json
import os
import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from helpers.study.facts import HUGE_PAGES, Candidate, Machine, Missing, Record, Row, Study, Task

BOUND = 0.4
"""The spread, as a share of the median, above which a row is no measurement: half of the rounds
then lie further apart than that, and the ratios of two such rows say nothing."""


def make(device: torch.device, studies: Iterable[Study]) -> Record:
    """Put studies together with what they were measured on, with what and when."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    processor = found[1].strip() if found else platform.processor() or platform.machine()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor
    machine = Machine(
        name, processor, os.cpu_count(), torch.get_num_threads(), system=platform.system()
    )
    versions = {"python": platform.python_version()}
    for package in ("torch", "numpy", "opacus", "backpack-for-pytorch", "jax"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return Record(machine, versions, datetime.now(UTC).date().isoformat(), list(studies))


def disturbed(studies: Iterable[Study]) -> list[str]:
    """Name what was disturbed while it was measured.

    Of huge pages nothing is said: on a virtual machine, they are slow in some rounds by themselves.
    """
    return [
        f"{study.group}, {study.task.model}, B = {study.task.batch_size}: {row.candidate}"
        for study in studies
        for row in study.rows
        if row.iqr > BOUND * row.median and row.candidate.allocator != HUGE_PAGES
    ]


def write(record: Record, path: Path) -> None:
    """Write a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(record), indent=1) + "\n")


def read_all(folder: Path) -> dict[str, Record]:
    """Read the records of a folder: `{name of the file without .json: record}`."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def read(path: Path) -> Record:
    """Read a record."""
    return json.loads(path.read_text(), object_hook=_fact)


def _fact(content: dict[str, Any]) -> Any:
    """Make the facts that have these fields; versions stay a dictionary."""
    for kind in (Record, Machine, Study, Task, Row, Missing, Candidate):
        if content.keys() == {each.name for each in fields(kind)}:
            return kind(**content)
    return content
