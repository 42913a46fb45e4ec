"""The pictures of the lessons: each function takes numbers and returns a matplotlib figure.

A `title` states the finding; `xlabel` and `ylabel` name quantities and units. Figures of times have
no title, since another machine may show something else.
"""

# ruff: noqa: F401
from helpers.plots.detection import canaries, releases
from helpers.plots.graphs import curves, effects, prices
from helpers.plots.images import attributions, digits
