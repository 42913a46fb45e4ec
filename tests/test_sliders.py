"""A picture with a slider: one frame is seen, no server is asked, and it is the same each time."""

import re

import matplotlib.pyplot as plt

from helpers.plots import Slider
from helpers.plots.figures import finish

FRAMES = {"step 0": 1, "step <2>": 2, "step 4": 3}


def draw(number):
    figure, axis = plt.subplots(figsize=(1, 1))
    axis.bar(0, number)
    return finish(figure)


def test_last_frame_is_seen_without_script_and_each_has_a_place_and_a_title():
    bundle = Slider(draw, FRAMES, "Step:")._repr_mimebundle_()
    assert Slider(draw, FRAMES, "Step:")._repr_mimebundle_() == bundle, "the same each time"
    page = bundle["text/html"]
    images = re.findall(r"<img[^>]*>", page)
    assert ["hidden" in image for image in images] == [True, True, False]
    assert bundle["image/png"] in images[-1]
    assert "http" not in page, "no server is asked"
    assert 'type="range" min="0" max="2" value="2"' in page
    assert re.findall(r'alt="(.*?)"', page) == ["step 0", "step &lt;2&gt;", "step 4"]
    assert "<output>step 4</output>" in page
    assert bundle["text/plain"] == "<3 frames: step 0 to step 4>"
