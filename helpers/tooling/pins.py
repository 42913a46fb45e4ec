"""Check that what is installed is what requirements.txt pins.

Run from the folder that holds requirements.txt: `python -m helpers.tooling.pins torch`.
"""

import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path


def findings(packages: Sequence[str], requirements: str) -> list[str]:
    """List the packages whose installed version is not the pinned one.

    Args:
        packages: Names of installed packages.
        requirements: The text of requirements.txt.

    Returns:
        A sentence for each that differs.
    """
    found = []
    for package in packages:
        pinned = re.search(rf"^{re.escape(package)}==(\S+)$", requirements, re.MULTILINE)
        installed = version(package).partition("+")[0]  # without the build, such as +cpu
        if pinned is None:
            found.append(f"requirements.txt does not pin {package}")
        elif installed != pinned[1]:
            found.append(
                f"{package} {installed} is installed, and {pinned[1]} is pinned: "
                "remove .venv, and `make` will make it anew"
            )
    return found


if __name__ == "__main__":
    sys.exit("\n".join(findings(sys.argv[1:], Path("requirements.txt").read_text())) or 0)
