"""Pack the collection for a machine with PyTorch and no network, such as a node of a cluster.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.bundle --help`. The archive
build/bundle.tar.gz holds what git tracks of the collection, wheels of everything that its lists
name and the machine has not, torch apart, and `measure.py`, which does the rest there.
"""

import argparse
import io
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from helpers.tooling.bundle import measure
from helpers.tooling.lesson import drafts
from helpers.tooling.lesson.execution import end_cleanly_on_signals

FOLDER = Path("build/bundle")
LOCK = Path(".ci/constraints.txt")
CONTENT = ("notebooks", "helpers", "tests", "Makefile", "README.md", "requirements.txt")
HIDDEN = (".pytest.ini", ".ruff.toml", ".ci")
SCRIPT = Path(measure.__file__)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")
"""What wheels may be for, newest first."""
NOT_NEEDED = {"jupyterlab", "jupyterlab-server", "jupyter-builder", "babel", "ruff"}
"""What edits and checks lessons by hand, two thirds of all that is to be carried."""
OF_THE_MACHINE = re.compile(r"torch|functorch|triton|nvidia-.*|cuda-.*|setuptools|pip")
"""What the machine has of its own, whatever its list says: PyTorch, and what came with it."""


def pins(lock: str, have: str = "") -> dict[str, str]:
    """Read which packages at which versions go into the bundle.

    Args:
        lock: Lines `name==version`, all that the lists bring.
        have: What the machine has, as `pip list --format=freeze` prints it; versions do not count.

    Returns:
        `{name: version}` without those that are there, and those that nothing there needs.

    Raises:
        ValueError: A line of the lock is no pin.
    """
    there = {_normal(re.split(r"[=@ ]", line)[0]) for line in _lines(have)} | NOT_NEEDED
    found = {}
    for line in _lines(lock):
        name, equals, version = line.partition("==")
        if not equals:
            raise ValueError(f"{LOCK} must hold lines name==version, got {line!r}")
        if _normal(name) not in there and not OF_THE_MACHINE.fullmatch(_normal(name)):
            found[name] = version.split(";")[0].strip()
    return found


def download(wanted: dict[str, str], python: str, folder: Path) -> list[str]:
    """Get a wheel of each package; build one where none is published.

    Args:
        wanted: `{name: version}`.
        python: The version of the machine's Python, such as `"3.12"`.
        folder: Where they go.

    Returns:
        The packages of which there is no wheel for that Python, each with pip's reason.
    """
    platforms = [part for each in PLATFORMS for part in ("--platform", each)]
    missing = []
    for name, version in tqdm(wanted.items(), desc="wheels", unit="package"):
        pin = f"{name}=={version}"
        get = ["download", "--only-binary=:all:", "--python-version", python, *platforms]
        if _pip(*get, "--no-deps", "-d", str(folder), pin) is None:
            continue
        refused = _pip("wheel", "--no-deps", "-w", str(folder), pin)
        built = [
            path for path in folder.iterdir() if _normal(path.name.split("-")[0]) == _normal(name)
        ]
        if refused is not None:
            missing.append(f"{pin}: {refused}")
        elif not built[0].name.endswith("-none-any.whl"):
            built[0].unlink()
            missing.append(f"{pin}: no wheel is published, and one built here is for this machine")
    return missing


def pack(folder: Path, wheels: Path, python: str) -> Path:
    """Write the archive beside a folder: the collection, the wheels and the script.

    Args:
        folder: The archive is `folder` with `.tar.gz` behind its name.
        wheels: The folder of wheels.
        python: The version of Python that they are for.
    """
    archive = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(draft := archive.with_name(f".{archive.name}.draft"), "w:gz") as tar:
        for path in _tracked():
            tar.add(path, f"{folder.name}/collection/{path}")
        tar.add(wheels, f"{folder.name}/wheels")
        tar.add(SCRIPT, f"{folder.name}/measure.py")
        said = f"{python}\n".encode()
        about = tarfile.TarInfo(f"{folder.name}/{measure.WANTED.name}")
        about.size, about.mtime = len(said), int(time.time())
        tar.addfile(about, io.BytesIO(said))
    draft.replace(archive)
    return archive


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, 1 when a wheel cannot be had, 2 when something asked for will not do.
    """
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.bundle", description=__doc__)
    parser.add_argument("--python-version", default="3.12", help="of the machine, such as 3.12")
    parser.add_argument("--have", type=Path, help="its `pip list --format=freeze`, as a file")
    asked = parser.parse_args(arguments)
    try:
        if not re.fullmatch(r"3\.\d+", asked.python_version):
            raise ValueError(f"PYTHON_VERSION must be such as 3.12, got {asked.python_version!r}")
        if asked.have is not None and not asked.have.is_file():
            raise ValueError(
                f"HAVE must be a file with a list of packages, there is no {asked.have}"
            )
        wanted = pins(LOCK.read_text(), asked.have.read_text() if asked.have else "")
        with drafts.replaced(FOLDER) as draft:
            missing = download(wanted, asked.python_version, draft)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    archive = pack(FOLDER, FOLDER, asked.python_version)
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB, {len(wanted)} packages")
    print("There: tar xf bundle.tar.gz && python bundle/measure.py  (--device cpu: without a GPU)")
    for sentence in missing:
        print(f"not in it: {sentence}", file=sys.stderr)
    return 1 if missing else 0


def _tracked() -> list[Path]:
    """List the files of the collection: those that git tracks, or all where there is no git."""
    listed = subprocess.run(["git", "ls-files", *CONTENT, *HIDDEN], capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [Path(line) for line in listed.stdout.splitlines()]
    return [path for top in (*CONTENT, *HIDDEN) for path in (Path(top), *Path(top).rglob("*"))]


def _pip(*arguments: str) -> str | None:
    """Run pip; return the last line of what it complains of, None if it does not."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or ["pip says nothing"])[-1].removeprefix("ERROR: ")


def _lines(text: str) -> Iterable[str]:
    """List the lines of a list of packages, without comments."""
    return filter(None, (line.partition("#")[0].strip() for line in text.splitlines()))


def _normal(name: str) -> str:
    """Return a package's name as pip compares names."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


if __name__ == "__main__":
    end_cleanly_on_signals()
    sys.exit(main())
