"""What the tests of the tooling share."""

from pathlib import Path

import pytest

from tests.support.samples import ROOT


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """Work in an empty copy of the collection: its helpers, and a folder for lessons."""
    (tmp_path / "helpers").symlink_to(ROOT / "helpers")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path
