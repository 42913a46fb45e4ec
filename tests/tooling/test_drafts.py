"""Folders and files that are generated: finished, or as they were before."""

import contextlib

import pytest

from helpers.tooling.lesson import drafts


@pytest.mark.parametrize("error", [None, KeyError("no"), SystemExit(143)])
def test_a_file_or_a_folder_is_replaced_unless_it_fails(error, tmp_path):
    folder, file = tmp_path / "build" / "edition", tmp_path / "file"
    folder.mkdir(parents=True)
    for old in (folder / "old", file):
        old.write_text("old")
    ends = contextlib.suppress(KeyError, SystemExit)
    with ends, drafts.replaced(folder) as draft, drafts.replaced(file) as text:
        draft.mkdir()
        (draft / "new").touch()
        text.write_text("new")
        assert file.read_text() == "old"
        if error:
            raise error
    state = "old" if error else "new"
    assert (file.read_text(), [*folder.iterdir()]) == (state, [folder / state])
    assert sorted(tmp_path.iterdir()) == [folder.parent, file]
    assert [*folder.parent.iterdir()] == [folder]
