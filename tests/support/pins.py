"""Check that what is installed is what requirements.txt pins.

Run from the folder that holds requirements.txt: `python -m helpers.tooling.pins torch`.
"""

import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path


def read(requirements: str) -> dict[str, str]:
    """Read the pins of a list: `{name: version}`, names in small letters with hyphens."""
    pins = re.findall(r"^([\w.-]+)==([^\s#]+)", requirements, re.MULTILINE)
    return {plain(name): pinned for name, pinned in pins}


def plain(name: str) -> str:
    """Write a package's name as all its spellings are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def findings(packages: Sequence[str], requirements: str) -> list[str]:
    """List the packages whose installed version is not the pinned one.

    Args:
        packages: Names of installed packages.
        requirements: The text of requirements.txt.

    Returns:
        A sentence for each that differs.
    """
    pins, found = read(requirements), []
    for package in packages:
        pinned = pins.get(plain(package))
        installed = version(package).partition("+")[0]  # without the build, such as +cpu
        if pinned is None:
            found.append(f"no pin of {package}")
        elif installed != pinned:
            found.append(
                f"{package} {installed} is installed, and {pinned} is pinned: "
                "remove .venv, and `make` will make it anew"
            )
    return found


if __name__ == "__main__":
    sys.exit("\n".join(findings(sys.argv[1:], Path("requirements.txt").read_text())) or 0)
