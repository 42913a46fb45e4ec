"""`make bench`: measure the candidates of lessons 7 and 7b, each in its own process.

Prints tables and writes `build/<device>/bench.json`, updated after each network.
"""

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from helpers import devices
from helpers.study import peers, processes
from helpers.study.candidates import CANDIDATES, DEFAULT, HUGE_PAGES, Candidate, Task
from helpers.tooling.lesson import drafts, endings

NETWORKS = ("SimpleCNN", "MLP")
BOUND = 0.4
"""The spread, as a share of the median, above which a row is no measurement: the middle half of the
rounds spans more than that, and the ratios of two such rows say nothing."""


def on(device: torch.device, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Leave out what does not concern a GPU: CPU allocators, and JAX, which runs on the CPU."""
    if device.type == "cpu":
        return list(candidates)
    chosen = []
    for candidate in candidates:
        if candidate.allocator == DEFAULT and candidate.method not in peers.JAX:
            chosen.append(candidate)
    return chosen


def record(device: torch.device, studies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put studies together with the machine, the versions and the date."""
    processor = _processor()
    machine = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }
    versions = {"python": platform.python_version()}
    for package in ("torch", "numpy", "opacus", "backpack-for-pytorch", "jax"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    date = datetime.now(UTC).date().isoformat()
    return {"machine": machine, "versions": versions, "date": date, "studies": studies}


def _processor() -> str:
    """Name the processor, as Linux does if it can."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"model name\s*: (.+)", info.read_text("utf-8"))
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()


def table(study: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of a study, indexed by the fields of its candidates."""
    return pd.DataFrame(study["rows"]).set_index(list(Candidate._fields))


def disturbed(study: Mapping[str, Any]) -> list[str]:
    """Name the measurements that were disturbed, except with huge pages, which vary anyway."""
    names = []
    for row in study["rows"]:
        candidate = Candidate(row["method"], row["compiled"], row["allocator"])
        if row["iqr"] > BOUND * row["median"] and candidate.allocator != HUGE_PAGES:
            names.append(f"{study['model']}: {candidate}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, 1 if disturbed, 2 if the device is invalid, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.bench", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    try:
        device = devices.resolve(parser.parse_args(arguments).device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    path = Path("build") / str(device).replace(":", "-") / "bench.json"
    studies: list[dict[str, Any]] = []
    for network in NETWORKS:
        task = Task(network, batch_size=64, device=str(device))
        try:
            study = processes.run(task, on(device, CANDIDATES))
        except KeyboardInterrupt:
            return 130
        studies.append(study)
        with drafts.replaced(path) as draft:
            draft.write_text(json.dumps(record(device, studies), indent=1) + "\n", "utf-8")
        print(f"\n{network}, B = 64\n{table(study).to_string()}")
        for name, why in study["missing"].items():
            print(f"  {name}: {why}")
    print(f"\nThe record is {path}: to keep it, copy it to notebooks/measurements/")

    wild = []
    for study in studies:
        wild += disturbed(study)
    if wild:
        spread = f"a spread above {BOUND:.0%} of the median"
        print(f"Do not keep it: {spread}. Measure again when nothing else runs:", file=sys.stderr)
        print("\n".join(wild), file=sys.stderr)
    return int(bool(wild))


if __name__ == "__main__":
    endings.in_one_sentence()
    sys.exit(main())
