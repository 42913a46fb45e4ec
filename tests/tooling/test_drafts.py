"""Folders and files that are generated: there in full, or as they were before, in any event."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.tooling.lesson import drafts
from tests.tooling.samples import LESSONS, ROOT

COMMANDS = {"colab": "build/colab", "student": "build/student", "pages": "build/html"}
# Runs a module as a command, and ends it by a signal at the worst moment: the old folder has been
# moved aside, and the new one is not in its place yet.
INTERRUPTED = """\
import os, pathlib, runpy, signal, sys

rename = pathlib.Path.rename

def interrupted(path, target):
    pathlib.Path.rename = rename
    path.rename(target)
    os.kill(os.getpid(), signal.SIGTERM)

module = sys.argv.pop()
pathlib.Path.rename = interrupted
runpy.run_module(module, run_name="__main__")
"""


def tree(folder: Path) -> dict[str, str]:
    """Read all files below a folder, hidden ones too; folders themselves are not listed."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(errors="replace")  # pictures, too
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def old(tmp_path) -> Path:
    """Make a folder that is there before."""
    folder = tmp_path / "build" / "edition"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "old").write_text("old")
    return folder


def test_folder_is_made_anew(old):
    with drafts.replaced(old) as draft:
        (draft / "new").write_text("new")
        assert tree(old) == {"inner/old": "old"}
    assert tree(old.parent) == {"edition/new": "new"}
    assert os.listdir(old.parent) == ["edition"]
    assert os.listdir(old) == ["new"]


def test_file_is_made_anew_where_its_folder_need_not_be(tmp_path):
    path = tmp_path / "a" / "file"
    for text in ("old", "new"):
        with drafts.replaced_file(path) as draft:
            draft.write_text(text)
            assert not path.exists() or path.read_text() == "old"
        assert tree(tmp_path) == {"a/file": text}
        assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("error", [KeyError("no"), SystemExit(143)])
def test_what_fails_leaves_the_old_alone(old, error):
    def fail(path: Path) -> None:
        with drafts.replaced(path) as draft:
            (draft / "new").write_text("new")
            raise error

    for folder in (old, old.with_name("other")):
        with pytest.raises(type(error)) as raised:
            fail(folder)
        assert raised.value is error
    assert tree(old.parent) == {"edition/inner/old": "old"}
    assert os.listdir(old.parent) == ["edition"]


def test_folder_that_cannot_take_its_place_leaves_the_old(old, monkeypatch):
    def fail(path, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with (
        pytest.raises(ValueError, match=r"cannot write .*edition: No space left on device$"),
        drafts.replaced(old),
    ):
        pass
    assert tree(old.parent) == {"edition/inner/old": "old"}
    assert os.listdir(old.parent) == ["edition"]


@pytest.fixture
def edition(request, desk) -> tuple[str, Path]:
    """Name a command that makes a folder, which is there before, with a file of somebody's."""
    shutil.copy(LESSONS[-1], desk / "notebooks")  # it links to no other
    shutil.copy(ROOT / "requirements.txt", desk)
    folder = desk / COMMANDS[request.param]
    folder.mkdir(parents=True)
    (folder / "old").write_text("old")
    return f"helpers.tooling.{request.param}", folder


@pytest.mark.whole
@pytest.mark.parametrize("edition", COMMANDS, indirect=True)
def test_command_makes_its_folder_anew_and_a_signal_leaves_it_as_it_was(edition, desk):
    module, folder = edition
    command = [sys.executable, "-c", INTERRUPTED, module]
    done = subprocess.run(command, cwd=desk, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in done.stderr
    assert tree(folder) == {"old": "old"}
    subprocess.run([sys.executable, "-m", module], cwd=desk, check=True, capture_output=True)
    assert (folder / LESSONS[0].name).exists() or (folder / "index.html").exists()
    assert not (folder / "old").exists()
    assert os.listdir(folder.parent) == [folder.name]


@pytest.mark.parametrize("edition", COMMANDS, indirect=True)
def test_command_that_cannot_write_says_so(edition, desk):
    module, folder = edition
    (folder / "old").unlink()
    folder.rmdir()
    folder.write_text("somebody's")
    done = subprocess.run([sys.executable, "-m", module], cwd=desk, capture_output=True, text=True)
    assert done.returncode == 1
    *_, shown = done.stderr.splitlines()  # after the bar that shows progress, where there is one
    assert shown.startswith(f"cannot write {folder.relative_to(desk)}: ")
    assert "Traceback" not in done.stderr
    assert folder.read_text() == "somebody's"
