"""What executed lessons say, arranged for a page, with a column for each device."""

from collections.abc import Iterable
from typing import Any

Entries = dict[str, dict[str, Any]]
"""What `report_tables.read` gives, by lesson or by device."""
Devices = dict[str, Entries]
"""The same by device, then lesson."""


def lesson(stem: str, devices: Devices) -> dict[str, Any]:
    """Arrange one lesson by table, with a column for each device."""
    entries = {name: each[stem] for name, each in devices.items() if stem in each}
    comparisons = []
    for cell in _union(entry["comparison"] for entry in entries.values()):
        rows = {
            name: {
                row["parameter"]: row for row in entry["comparison"].get(cell, {"rows": []})["rows"]
            }
            for name, entry in entries.items()
        }
        for parameter in _union(rows.values()):
            got = {name: each.get(parameter) for name, each in rows.items()}
            shapes = {tuple(row["shape"]) for row in got.values() if row}
            comparisons.append(
                {"cell": cell, "parameter": parameter, "rows": got, "disagree": len(shapes) > 1}
            )
    plots = []
    for cell in _union(entry["timing"] for entry in entries.values()):
        tables = {n: e["timing"][cell] for n, e in entries.items() if cell in e["timing"]}
        for reference in dict.fromkeys(table["reference"] for table in tables.values()):
            alike = {n: t for n, t in tables.items() if t["reference"] == reference}
            plots.append({"cell": cell, "reference": reference, "tables": alike})
    return {
        "stem": stem,
        "entries": entries,
        "differences": _differences(entries),
        "speed_ups": _speed_ups(entries, list(devices)),
        "comparisons": comparisons,
        "plots": plots,
    }


def _differences(entries: Entries) -> list[str]:
    """Name the parameters that a lesson did not have in common on all devices, and their values."""
    given = {device: entry["facts"]["parameters"] for device, entry in entries.items()}
    found = []
    for name in _union(given.values()):
        values = {device: str(each.get(name, "not there")) for device, each in given.items()}
        if len(set(values.values())) > 1:
            said = ", ".join(f"{value} on {device}" for device, value in values.items())
            found.append(f"{name} differs: {said}")
    return found


def _speed_ups(entries: Entries, devices: list[str]) -> dict[str, str]:
    """Compare the run times of a lesson with that on the first device, where both passed."""
    first, *others = devices
    texts = dict.fromkeys(others, "")
    for device in others:
        pair = {name: entries[name] for name in (first, device) if name in entries}
        if len(pair) == 2 and all(entry["failure"] is None for entry in pair.values()):
            ratio = pair[first]["seconds"] / pair[device]["seconds"]
            texts[device] = "; ".join(_differences(pair)) or (
                f"{ratio:,.1f} times as fast" if ratio >= 1 else f"{ratio:.2g} times as fast"
            )
    return texts


def facts(devices: Devices) -> dict[str, list[dict[str, Any]]]:
    """Arrange dates, machines, versions and parameters, with a column for each device.

    Returns:
        For each part the rows: a name, its text for each device, and whether all are the same.
    """
    parts: dict[str, list[dict[str, Any]]] = {}
    for part in ("run", "machine", "versions", "parameters"):
        parts[part] = []
        for name in _union(e["facts"][part] for d in devices.values() for e in d.values()):
            texts = {device: _fact(each, part, name) for device, each in devices.items()}
            same = len(texts) > 1 and len(set(texts.values())) == 1
            parts[part].append({"name": name, "texts": texts, "same": same})
    return parts


def _fact(entries: Entries, part: str, name: str) -> str:
    """Give the value of a fact, and with which lessons unless it is the same with all."""
    with_value: dict[str, list[str]] = {}
    for stem, entry in entries.items():
        if name in entry["facts"][part]:
            with_value.setdefault(str(entry["facts"][part][name]), []).append(stem[:2])
    return ", ".join(
        value if len(numbers) == len(entries) else f"{value} ({' '.join(numbers)})"
        for value, numbers in with_value.items()
    )


def _union(groups: Iterable[Iterable[str]]) -> list[str]:
    """List what is in any of the groups, each once, in order."""
    return list(dict.fromkeys(each for group in groups for each in group))
