"""Records of measurements as files: what was measured, on which machine, with what, and when."""

import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch

from helpers.study.facts import HUGE_PAGES, Machine, Record, Study

PACKAGES = ("torch", "numpy", "opacus", "backpack-for-pytorch", "jax")
BOUND = 0.4
"""The spread, as a share of the median, above which a row is no measurement: half of the rounds
then lie further apart than that, and the ratios of two such rows say nothing."""


def machine(device: torch.device) -> Machine:
    """Describe the machine: name of the device, processor, its cores, threads in use, system."""
    processor = _processor()
    on_gpu = device.type == "cuda"
    return Machine(
        device=torch.cuda.get_device_name(device) if on_gpu else processor,
        processor=processor,
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        system=platform.system(),
    )


def make(device: torch.device, studies: Iterable[Study]) -> Record:
    """Put studies together with what they were measured on, with what and when."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return Record(machine(device), versions, datetime.now(UTC).date().isoformat(), tuple(studies))


def disturbed(studies: Iterable[Study]) -> list[str]:
    """Name what was disturbed while it was measured, as far as anything is said of its time.

    Nothing is said of the time of huge pages: on a virtual machine whose host takes back what is
    freed, they are slow in some rounds whatever else runs.
    """
    return [
        f"{study.group}, {study.task.model}, B = {study.task.batch_size}: {candidate}"
        for study in studies
        for candidate in study.disturbed(BOUND)
        if candidate.allocator != HUGE_PAGES
    ]


def write(record: Record, path: Path) -> None:
    """Write a record, under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(json.dumps(asdict(record), indent=1) + "\n")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> Record:
    """Read a record.

    Raises:
        ValueError: It is no JSON; or something is missing, or of another type, or not known, with
            its name and its place.
    """
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error
    return parse(Record, content, path.name)


def read_all(folder: Path) -> dict[str, Record]:
    """Read the records of a folder: `{name of the file without .json: record}`."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def parse(kind: Any, content: Any, where: str) -> Any:
    """Make of JSON what `asdict` made JSON of.

    Args:
        kind: A dataclass, or the type of one of its fields.
        content: What JSON holds.
        where: Its place, for the message.

    Raises:
        ValueError: As in `read`.
    """
    if is_dataclass(kind):
        types = get_type_hints(kind)
        names = [field.name for field in fields(kind)]
        if not isinstance(content, dict):
            raise ValueError(f"{where}: expected {', '.join(names)}, got {content!r:.40}")
        for problem, first, second in (("lacks", names, content), ("has also", content, names)):
            wrong = [name for name in first if name not in second]
            if wrong:
                raise ValueError(f"{where}: it {problem} {', '.join(wrong)}")
        return kind(**{n: parse(types[n], content[n], f"{where}, {n}") for n in names})
    origin, inside = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(content, list):
        return tuple(parse(inside[0], each, f"{where} {i}") for i, each in enumerate(content))
    if origin is dict and isinstance(content, dict):
        return {name: parse(inside[1], each, f"{where}, {name}") for name, each in content.items()}
    choices = inside if origin is UnionType else (origin or kind,)
    allowed = (*choices, int) if float in choices else choices
    if not isinstance(content, allowed) or (isinstance(content, bool) and bool not in choices):
        expected = " or ".join(choice.__name__ for choice in choices)
        raise ValueError(f"{where}: expected {expected}, got {content!r:.40}")
    return content


def _processor() -> str:
    """Name the processor as its system does."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()
