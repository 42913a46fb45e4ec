"""Make an environment for `make`, or bring it up to a list: `environment.py MARK LIST [TORCH]`.

MARK is a file in the environment, written last. The first list is requirements.txt: where its mark
is missing, the environment is made anew. Other lists are installed into what is there.

Without TORCH all is pinned. With it, that release takes the place of the pinned torch, and what
torch itself needs comes in versions that go with it; everything else stays as pinned.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

FIRST = "requirements.txt"
LOCK = ".ci/constraints.txt"
OF_TORCH = r"(torch|setuptools|sympy|networkx|fsspec|filelock|triton|nvidia-.*|cuda-.*)=="
"""What torch bounds by itself, and no lesson imports."""
SPACE = 12  # GB: the newest builds for Linux bring CUDA


def refusal(folder: Path, torch: str | None, new: bool) -> str | None:
    """Say in one sentence why the environment cannot be made, as far as that shows at once."""
    if sys.version_info < (3, 11):  # noqa: UP036 - an older one may run this line
        return f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}"
    if torch and not re.fullmatch(r"\d+\.\d+\.\d+", torch):
        return f"TORCH must be a release, for example 2.15.0, got {torch}"
    if new and find_spec("ensurepip") is None:
        return (
            f"{sys.executable} has no ensurepip, so it makes no environments: install its package "
            "(python3-venv on Debian and Ubuntu), or name another interpreter by PYTHON=..."
        )
    if os.pathsep in str(Path.cwd()):
        return f"no environment can be in {Path.cwd()}: move what has {os.pathsep!r} in its name"
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        return f"the environment would be in {folder.resolve()}, and all that is there would go"
    free = shutil.disk_usage(".").free / 1e9
    if torch and new and free < SPACE:
        return f"torch {torch} takes up to {SPACE} GB on disk, and {free:.1f} GB are free"
    return None


def pins(name: str) -> list[str]:
    """Read a list without its comments, and without what goes with torch."""
    found = []
    for line in Path(name).read_text("utf-8").splitlines():
        pin = line.partition("#")[0].strip()
        if pin and not re.match(OF_TORCH, pin):
            found.append(pin)
    return found


def arguments(listed: str, torch: str | None, folder: Path) -> list[str]:
    """List what pip shall install, and within which constraints."""
    if not torch:
        return [f"-r{listed}", f"-c{LOCK}"]
    lock = folder / "constraints.txt"
    lock.write_text("\n".join(pins(LOCK)), "utf-8")
    return [f"torch=={torch}", *pins(listed), f"-c{lock}"]


def make(mark: Path, listed: str, torch: str | None) -> str | None:
    """Make the environment, or add a list; return what went wrong, if anything did.

    Where another torch cannot be installed, no environment is left.
    """
    folder, new = mark.parent, listed == FIRST and not mark.exists()
    said = refusal(folder, torch, new)
    if said:
        return said
    done = False
    try:
        if new:
            venv = [sys.executable, "-m", "venv", "--clear", folder]
            made = subprocess.run(venv, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
            if made.returncode:
                return f"no environment was made in {folder}: {made.stderr.strip()}"
        # Python compiles a module when it is first imported. All would take half of the time.
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--no-compile"]
        pip += arguments(listed, torch, folder)
        # What pip prints stays in sight, as it takes minutes; its errors are read as well.
        ran = subprocess.run(pip, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
        done = ran.returncode == 0
    finally:
        if new and torch and not done:
            shutil.rmtree(folder, ignore_errors=True)
    if done:
        mark.touch()
        return None
    there = re.search(r"requirement torch==\S+ \(from versions: (.*?)\)", ran.stderr)
    if there:
        python = "{}.{}".format(*sys.version_info)
        return f"there is no torch {torch} for Python {python} here, but {there[1]}"
    return ran.stderr.strip()


if __name__ == "__main__":
    try:
        sys.exit(make(Path(sys.argv[1]), sys.argv[2], *sys.argv[3:] or [None]))
    except OSError as error:  # a full disk, a tree that is read-only
        sys.exit(f"{error.filename}: {error.strerror}")
