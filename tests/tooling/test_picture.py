"""The picture of README.md shows what the lessons have saved."""

import numpy as np
import pytest
from nbformat import NotebookNode
from PIL import Image

from helpers.tooling import picture
from tests.tooling.samples import ROOT, code, lesson, save


def test_picture_is_of_the_saved_figures():
    shown = np.asarray(Image.open(ROOT / picture.PICTURE).convert("RGB"))
    saved = np.asarray(picture.compose(ROOT / "notebooks"))
    assert np.array_equal(shown, saved), "`make outputs` renews the picture"


@pytest.mark.usefixtures("desk")
def test_missing_figure_is_named():
    notebook: NotebookNode = lesson(code("kernel-picture", "1"))
    save(notebook, "01_naive_loop")
    with pytest.raises(ValueError, match=r"01_naive_loop.ipynb has no saved figure in a cell 'ker"):
        picture.compose()
