"""A pytest plugin that keeps in .github/TRIED.md with which torch the collection was tried.

`pytest --tried="make test"` writes the row of this torch and this Python when all tests have run,
whatever their outcome. `make` asks for it wherever TORCH is given.
"""

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[2] / ".github" / "TRIED.md"
OUTCOMES = ("failed", "error", "passed", "skipped", "xfailed", "xpassed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tried`."""
    parser.addoption("--tried", help="the name of this run in .github/TRIED.md, to be kept there")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the row, if the run came to its end. Workers of pytest-xdist write none."""
    name = session.config.getoption("tried")
    ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if name and ended and not hasattr(session.config, "workerinput"):
        stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
        went = ", ".join(f"{len(stats[each]):,} {each}" for each in OUTCOMES if stats.get(each))
        keep(name, went, FILE)


def keep(name: str, went: str, file: Path) -> None:
    """Write a row into the table, in place of an earlier one of this torch, Python and run."""
    version = re.match(r"[\d.]+", torch.__version__)[0]
    key = f"| {version} | {platform.python_version()} | `{name}` |"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    new = f"{key} {went} | {datetime.now(UTC):%Y-%m-%d} | {machine} |"
    lines = file.read_text("utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|---")) + 1
    rows = [line for line in lines[start:] if not line.startswith(key)] + [new]
    rows.sort(key=lambda each: [int(number) for number in re.findall(r"\d+", each)[:6]])
    file.write_text("\n".join([*lines[:start], *rows]) + "\n", "utf-8")
