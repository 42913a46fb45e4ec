"""The pictures of the lessons: each function takes numbers and returns a matplotlib figure.

A `title` says what there is to see, `xlabel` and `ylabel` what the numbers on the axes are, with
their unit. Of a measured time there is no title, since it would be another on another machine.
"""

# ruff: noqa: F401
from helpers.plots.detection import canaries, releases
from helpers.plots.graphs import curves, effects, prices
from helpers.plots.images import attributions, digits
