"""Folders that are generated: there in full, or as they were before, in any event."""

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


def test_folder_and_those_above_need_not_be_there(tmp_path):
    with drafts.replaced(tmp_path / "a" / "b") as draft:
        (draft / "new").write_text("new")
    assert tree(tmp_path) == {"a/b/new": "new"}


def test_file_is_made_anew(tmp_path):
    path = tmp_path / "file"
    for text in ("old", "new"):
        with drafts.replaced_file(path) as draft:
            draft.write_text(text)
            assert not path.exists() or path.read_text() == "old"
        assert tree(tmp_path) == {"file": text}


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(143), KeyboardInterrupt()])
def test_error_leaves_the_file_as_it_was(error, tmp_path):
    def fail():
        with drafts.replaced_file(tmp_path / "file") as draft:
            draft.write_text("new")
            raise error

    (tmp_path / "file").write_text("old")
    with pytest.raises(type(error)):
        fail()
    assert tree(tmp_path) == {"file": "old"}


@pytest.mark.parametrize("name", ["folder", "nowhere/file", "file/inner"])
def test_file_that_cannot_be_written_is_named(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    reason = r"(Is|Not) a directory|No such file or directory"
    with (
        pytest.raises(ValueError, match=rf"^cannot write .*{name}: ({reason})$"),
        drafts.replaced_file(tmp_path / name) as draft,
    ):
        draft.write_text("new")
    assert tree(tmp_path) == {"file": "kept"}


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(143), KeyboardInterrupt()])
def test_error_leaves_the_folder_as_it_was(error, old):
    def fail(folder):
        with drafts.replaced(folder) as draft:
            (draft / "new").write_text("new")
            raise error

    for folder in (old, old.with_name("other")):
        with pytest.raises(type(error)) as raised:
            fail(folder)
        assert raised.value is error
    assert tree(old.parent) == {"edition/inner/old": "old"}
    assert os.listdir(old.parent) == ["edition"]


def test_folder_that_cannot_take_its_place_leaves_the_old(old, monkeypatch):
    rename = Path.rename

    def fail(path, target):
        if path.name == "new":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with (
        pytest.raises(ValueError, match=r"cannot write .*edition: No space left on device$"),
        drafts.replaced(old),
    ):
        pass
    assert tree(old.parent) == {"edition/inner/old": "old"}
    assert os.listdir(old.parent) == ["edition"]


def test_file_that_the_folder_needs_is_named(old):
    with (
        pytest.raises(ValueError, match=r"edition: No such file or directory: .*nowhere.txt$"),
        drafts.replaced(old) as draft,
    ):
        shutil.copy(old / "nowhere.txt", draft)
    assert tree(old.parent) == {"edition/inner/old": "old"}


def test_link_to_a_folder_stays_one(old, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(old)
    with drafts.replaced(link) as draft:
        (draft / "new").write_text("new")
    assert link.is_symlink()
    assert tree(old) == {"new": "new"}


@pytest.mark.parametrize("name", ["file", "file/inner", "dangling", "dangling/inner"])
def test_what_stands_in_the_way_is_named(name, tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    whole = "it" if "/" not in name else rf".*{name.partition('/')[0]}"
    sentence = rf"^cannot write .*{name}: {whole} is there, and is not a folder$"
    with pytest.raises(ValueError, match=sentence), drafts.replaced(tmp_path / name):
        pass
    assert tree(tmp_path) == {"file": "kept"}


@pytest.fixture
def edition(request, desk) -> tuple[str, Path]:
    """Name a command that makes a folder, which is there before, with a file of somebody's."""
    shutil.copy(LESSONS[-1], desk / "notebooks")  # it links to no other
    shutil.copy(ROOT / "requirements.txt", desk)
    folder = desk / COMMANDS[request.param]
    folder.mkdir(parents=True)
    (folder / "old").write_text("old")
    return f"helpers.tooling.{request.param}", folder


@pytest.mark.parametrize("edition", COMMANDS, indirect=True)
def test_command_makes_its_folder_anew(edition, desk):
    module, folder = edition
    subprocess.run([sys.executable, "-m", module], cwd=desk, check=True, capture_output=True)
    written = tree(folder)
    assert written.keys() & {LESSONS[-1].name, f"{LESSONS[-1].stem}.html"}
    assert "old" not in written
    assert os.listdir(folder.parent) == [folder.name]


@pytest.mark.whole
@pytest.mark.parametrize("edition", COMMANDS, indirect=True)
def test_signal_leaves_the_folder_as_it_was(edition, desk):
    module, folder = edition
    command = [sys.executable, "-c", INTERRUPTED, module]
    done = subprocess.run(command, cwd=desk, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in done.stderr
    assert tree(folder) == {"old": "old"}
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
    assert (
        shown
        == f"cannot write {COMMANDS[module.rpartition('.')[2]]}: it is there, and is not a folder"
    )
    assert "Traceback" not in done.stderr
    assert folder.read_text() == "somebody's"
