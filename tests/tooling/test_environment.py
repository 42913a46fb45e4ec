"""The environments that `make` works in."""

import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from tests.support.samples import ROOT

LISTS = {
    "requirements.txt": "torch==2.13.0  # exactly\n\nnumpy==2.4.6  # arrays\n",
    "tests/requirements.txt": "# Tests.\npytest==9.2.0\n",
    ".ci/constraints.txt": (
        "# made\nnumpy==2.4.6 ; os_name == 'posix'  # via pandas\nsetuptools==84.2.1\n"
        "torch==2.13.0\nnvidia-nccl-cu13==2.29.7 ; sys_platform == 'linux'\n"
    ),
}
ABSENT = "ERROR: no version that satisfies the requirement torch==9.9.9 (from versions: 2.6.0)"


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Load the script in a folder with short lists, where nothing is installed: pip's stand-in."""
    spec = util.spec_from_file_location("environment", ROOT / ".ci" / "environment.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    for name, text in LISTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    module.calls, module.complaint = [], ""

    def run(command, **options):
        module.calls.append(list(map(str, command[3:])))
        if command[2] == "venv":
            command[-1].mkdir(parents=True, exist_ok=True)
            return subprocess.CompletedProcess(command, 0, "", "")
        if isinstance(module.complaint, BaseException):
            raise module.complaint
        status = 1 if module.complaint else 0
        return subprocess.CompletedProcess(command, status, "", module.complaint)

    monkeypatch.setattr(module.subprocess, "run", run)
    return module


INSTALL = ["install", "--no-compile"]


def test_all_is_pinned(environment, tmp_path):
    mark = tmp_path / ".venv" / "made"
    for _ in "12":  # the second time it is there, and brought up to the list
        assert environment.make(mark, "requirements.txt", None) is None
    first = [*INSTALL, "-rrequirements.txt", "-c.ci/constraints.txt"]
    assert environment.calls == [["--clear", str(mark.parent)], first, first]
    more = mark.with_name("more")
    assert environment.make(more, "tests/requirements.txt", None) is None
    assert environment.calls[3:] == [[*INSTALL, "-rtests/requirements.txt", first[-1]]]
    assert mark.exists()
    assert more.exists()


def test_all_but_torch_is_pinned(environment, tmp_path):
    mark = tmp_path / "build" / "torch-2.15.0" / "made"
    lock = mark.with_name("constraints.txt")
    assert environment.make(mark, "requirements.txt", "2.15.0") is None
    pins = ["torch==2.15.0", "numpy==2.4.6", f"-c{lock}"]
    assert environment.calls[-1] == [*INSTALL, *pins]
    assert lock.read_text("utf-8") == "numpy==2.4.6 ; os_name == 'posix'"
    environment.complaint = "ERROR: no network"
    assert environment.make(mark.with_name("more"), "tests/requirements.txt", "2.15.0")
    assert environment.calls[-1] == [*INSTALL, "torch==2.15.0", "pytest==9.2.0", f"-c{lock}"]
    assert mark.exists(), "what was there stays"


def test_what_will_not_do_is_said_and_leaves_no_environment(environment, tmp_path, monkeypatch):
    mark = tmp_path / "build" / "torch-9.9.9" / "made"
    for complaint, said in ((ABSENT, "no torch 9.9.9"), ("ERROR: no network", "no network")):
        environment.complaint = complaint
        assert said in environment.make(mark, "requirements.txt", "9.9.9")
    environment.complaint = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        environment.make(mark, "requirements.txt", "9.9.9")
    ran = len(environment.calls)
    assert environment.make(mark, "requirements.txt", "2.15").startswith("TORCH must be a release")
    monkeypatch.setattr(environment, "SPACE", 10**9)
    assert "GB are free" in environment.make(mark, "requirements.txt", "2.15.0")
    monkeypatch.setattr("sys.version_info", (3, 10, 4))
    assert environment.make(mark, "requirements.txt", None).startswith("Python 3.11")
    assert len(environment.calls) == ran
    assert not mark.parent.exists()


def test_without_ensurepip_or_with_a_colon_in_the_path(environment, tmp_path, monkeypatch):
    mark = tmp_path / ".venv" / "made"
    with monkeypatch.context() as patch:
        patch.setattr(environment, "find_spec", {"ensurepip": None}.get)
        assert "no ensurepip" in environment.make(mark, "requirements.txt", None)
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path / "a:b")
    assert "a:b: move what has ':' in its name" in environment.make(mark, "requirements.txt", None)
    assert environment.calls == []


@pytest.mark.parametrize("folder", [".", ".."])
def test_the_folder_that_we_are_in_is_never_made_anew(folder, environment):
    """As when a name of the Makefile's falls apart at a space."""
    assert "would go" in environment.make(Path(folder, "made"), "requirements.txt", None)
    assert environment.calls == []


def test_where_nothing_can_be_written_one_sentence_says_so(tmp_path):
    (tmp_path / ".venv").write_text("a file, where a folder should be")
    script = ROOT / ".ci" / "environment.py"
    for folder in (".venv", "/proc"):
        done = subprocess.run(
            [sys.executable, script, f"{folder}/made", "requirements.txt"],
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"no environment was made in {folder}: "), done.stderr
        assert done.stderr.count("\n") == 1
