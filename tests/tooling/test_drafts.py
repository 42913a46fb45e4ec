"""Folders and files that are generated: finished, or as they were before."""

import os
from pathlib import Path

import pytest

from helpers.tooling.lesson import drafts


@pytest.fixture
def old(tmp_path) -> Path:
    """Make a folder that is there before."""
    folder = tmp_path / "build" / "edition"
    folder.mkdir(parents=True)
    (folder / "old").write_text("old")
    return folder


def test_folder_is_made_anew(old):
    with drafts.replaced(old) as draft:
        draft.mkdir()
        (draft / "new").write_text("new")
        assert os.listdir(old) == ["old"]
    assert os.listdir(old.parent) == ["edition"]
    assert os.listdir(old) == ["new"]


def test_file_is_made_anew_where_its_folder_need_not_be(tmp_path):
    path = tmp_path / "a" / "file"
    for text in ("old", "new"):
        with drafts.replaced(path) as draft:
            draft.write_text(text)
            assert not path.exists() or path.read_text() == "old"
        assert path.read_text() == text
        assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("error", [KeyError("no"), SystemExit(143)])
def test_what_fails_leaves_the_old_alone(old, error):
    def fail() -> None:
        with drafts.replaced(old) as draft:
            draft.mkdir()
            raise error

    with pytest.raises(type(error)):
        fail()
    assert os.listdir(old.parent) == ["edition"]
    assert os.listdir(old) == ["old"]
