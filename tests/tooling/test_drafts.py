"""Folders and files that are generated: finished, or as they were before."""

import pytest

from helpers.tooling.lesson import drafts


def test_a_file_is_replaced_when_it_is_finished(tmp_path):
    path = tmp_path / "a" / "file"
    for text in ("old", "new"):
        with drafts.replaced(path) as draft:
            draft.write_text(text)
            assert not path.exists() or path.read_text() == "old"
        assert path.read_text() == text
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("error", [None, KeyError("no"), SystemExit(143)])
def test_a_folder_is_replaced_unless_it_fails(error, tmp_path):
    folder = tmp_path / "build" / "edition"
    folder.mkdir(parents=True)
    (folder / "old").touch()

    def make() -> None:
        with drafts.replaced(folder) as draft:
            draft.mkdir()
            (draft / "new").touch()
            if error:
                raise error

    if error:
        with pytest.raises(type(error)):
            make()
    else:
        make()
    assert [*folder.iterdir()] == [folder / ("old" if error else "new")]
    assert [*folder.parent.iterdir()] == [folder]
