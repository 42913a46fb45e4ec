"""A picture with a slider: one frame is seen, no server is asked, and it is the same each time."""

import re

import matplotlib.pyplot as plt
import pytest

from helpers.plots import Slider
from helpers.plots.figures import finish


def draw(number):
    figure, axis = plt.subplots(figsize=(1, 1))
    axis.bar(0, number)
    return finish(figure)


@pytest.fixture(scope="module")
def bundle():
    return Slider(draw, {"step 0": 1, "step <2>": 2, "step 4": 3}, "Step:")._repr_mimebundle_()


def test_last_frame_is_seen_without_script(bundle):
    images = re.findall(r"<img[^>]*>", bundle["text/html"])
    assert len(images) == 3
    assert ["hidden" in image for image in images] == [True, True, False]
    assert bundle["image/png"] in images[-1]


def test_each_frame_has_a_place_and_a_title(bundle):
    page = bundle["text/html"]
    assert 'type="range" min="0" max="2" value="2"' in page
    assert re.findall(r'alt="(.*?)"', page) == ["step 0", "step &lt;2&gt;", "step 4"]
    assert "<output>step 4</output>" in page
    assert bundle["text/plain"] == "<3 frames: step 0 to step 4>"


def test_no_server_is_asked(bundle):
    assert "http" not in bundle["text/html"]
    assert set(re.findall(r'src="(.{21})', bundle["text/html"])) == {"data:image/png;base64"}


def test_it_is_the_same_each_time(bundle):
    frames = {"step 0": 1, "step <2>": 2, "step 4": 3}
    assert Slider(draw, frames, "Step:")._repr_mimebundle_() == bundle
