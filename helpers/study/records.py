"""Records of measurements: what was measured, on which machine, with which versions, when."""

import json
import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from helpers.study.comparison import Study

PACKAGES = ("torch", "numpy", "opacus", "backpack-for-pytorch", "jax")
FIELDS = {
    "record": ("machine", "versions", "date", "studies"),
    "machine": ("device", "processor", "cores", "threads", "system"),
    "study": ("group", "task", "candidates", "absent", "failed", "cut_short"),
    "candidate": ("median", "iqr", "rounds", "peak", "held", "faults", "first"),
}
"""What each part of a record must have."""


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine: name of the device, processor, its cores, threads in use, system."""
    processor = _processor()
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else processor,
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }


def make(device: torch.device, studies: Sequence[Study]) -> dict[str, Any]:
    """Put studies together with what they were measured on, with what and when."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "machine": machine(device),
        "versions": versions,
        "date": datetime.now(UTC).date().isoformat(),
        "studies": list(studies),
    }


def write(record: dict[str, Any], path: Path) -> None:
    """Check a record and write it, under its name only when it is whole.

    Raises:
        ValueError: A field is missing, with its name.
    """
    check(record, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        ValueError: It is no JSON, or a field is missing, with its name.
    """
    try:
        record = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error
    check(record, path.name)
    return record


def read_all(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the records of a folder: `{name of the file without .json: record}`."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def check(record: Any, name: str) -> None:
    """Refuse a record in which something is missing.

    Raises:
        ValueError: With the field, and where it is missing.
    """
    _require(record, "record", name)
    _require(record["machine"], "machine", f"{name}, machine")
    for number, study in enumerate(record["studies"]):
        _require(study, "study", f"{name}, study {number}")
        for candidate, row in study["candidates"].items():
            _require(row, "candidate", f"{name}, study {number}, {candidate}")


def find(record: dict[str, Any], group: str, model: str, batch_size: int) -> Study | None:
    """Find the study of a group, model and batch size; `None` if the record has none."""
    for study in record["studies"]:
        task = study["task"]
        if (study["group"], task["model"], task["batch_size"]) == (group, model, batch_size):
            return study
    return None


def _require(part: Any, kind: str, where: str) -> None:
    if not isinstance(part, dict):
        raise ValueError(f"{where}: expected fields {', '.join(FIELDS[kind])}, got {part!r:.40}")
    missing = [field for field in FIELDS[kind] if field not in part]
    if missing:
        raise ValueError(f"{where}: it lacks {', '.join(missing)}")


def _processor() -> str:
    """Name the processor as its system does."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()
