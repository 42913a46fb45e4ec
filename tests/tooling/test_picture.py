"""The picture of README.md shows what the lessons have saved."""

import numpy as np
from PIL import Image

from helpers.tooling import picture
from tests.tooling.samples import ROOT


def test_picture_is_of_the_saved_figures():
    shown = np.asarray(Image.open(ROOT / picture.PICTURE).convert("RGB"))
    saved = np.asarray(picture.compose(ROOT / "notebooks"))
    assert np.array_equal(shown, saved), "`make outputs` renews the picture"
