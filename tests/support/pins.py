"""The pins of a list of requirements, and whether what is installed is what they say."""

import re
from collections.abc import Sequence
from importlib.metadata import version


def read(requirements: str) -> dict[str, str]:
    """Read the pins of a list: `{name: version}`, names in small letters with hyphens."""
    pins = re.findall(r"^([\w.-]+)==([^\s#]+)", requirements, re.MULTILINE)
    return {plain(name): pinned for name, pinned in pins}


def plain(name: str) -> str:
    """Write a package's name as all its spellings are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def findings(packages: Sequence[str], requirements: str) -> list[str]:
    """List the installed packages whose version is not the one that a list pins."""
    pins, found = read(requirements), []
    for package in packages:
        pinned = pins.get(plain(package))
        installed = version(package).partition("+")[0]  # without the build, such as +cpu
        if pinned is None:
            found.append(f"no pin of {package}")
        elif installed != pinned:
            found.append(f"{package} {installed} is not {pinned}")
    return found
