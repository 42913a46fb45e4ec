"""What happens to arguments, drawn with boxes and arrows."""

from collections.abc import Mapping, Sequence
from functools import partial

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.plots.figures import axes, finish

_CENTERED = {"ha": "center", "va": "center", "fontsize": 9}


def in_dims(arguments: dict[str, tuple[str, int | None]], function: str, *, title: str) -> Figure:
    """Draw what `vmap` hands to each call: a slice of an argument, or the whole of it.

    Arguments are `{name: (what it is, in_dim)}`, `in_dim` 0 for a batch and `None` for what all
    calls of `function`, a name, share.
    """
    width = 4.6 * len(arguments) - 0.6  # an argument is 4 wide, a gap 0.6
    figure, (axis,) = axes(4.1)
    half = 0.137 * width
    # For each call its number, colour, and place; the third is dots and needs less room.
    calls = [("0", "C0", 0.14), ("1", "C1", 0.43), ("...", "white", 0.645), ("B-1", "C2", 0.86)]
    for number, color, place in calls:
        if number == "...":
            axis.text(place * width, 0.5, number, **_CENTERED)
            continue
        box = (place * width - half, 0), 2 * half, 1
        axis.add_patch(Rectangle(*box, fill=False, ec=color, lw=2))
        axis.text(place * width, 0.5, f"{function}\ncall {number}", **_CENTERED)
    for column, (name, (what, dim)) in enumerate(arguments.items()):
        left = 4.6 * column
        axis.text(left + 2, 5.6, name, ha="center", fontsize=10, family="monospace")
        axis.text(left + 2, 4.5, f"{what}\nin_dim {dim}", ha="center", fontsize=9)
        if dim is None:
            axis.add_patch(Rectangle((left, 3.5), 4, 0.8, fc="lightgray", ec="gray"))
        for shift, (number, color, place) in enumerate(calls):
            start = left + shift
            if dim is not None:
                axis.add_patch(Rectangle((start, 3.5), 1, 0.8, fc=color, ec="gray", alpha=0.6))
                axis.text(start + 0.5, 3.9, number, **_CENTERED)
            if number != "...":
                begin, shade = (left + 2, "gray") if dim is None else (start + 0.5, color)
                _arrow(axis, (begin, 3.5), (place * width, 1.02), shade)
    axis.set(xlim=(-0.2, width + 0.2), ylim=(-0.1, 6.1))
    axis.axis("off")
    return finish(figure, title)


def nested(frames: Mapping[str, tuple[Sequence[str], str]], core: str, *, title: str) -> Figure:
    """Draw functions around functions: what goes into each, and what comes out of it.

    Frames are `{name of the function: (a text for each argument, one for the result)}`, the
    outermost first; the core is what the innermost does.
    """
    depth, columns = len(frames), len(next(iter(frames.values()))[0])
    width, step = 2.6 * columns, 1.5  # a text is 2.6 wide, a frame 1.5 below the one around it
    height = 2 * step * depth + 1.6  # the core is 1.6 high
    figure, (axis,) = axes(5.6)
    text = partial(axis.text, **_CENTERED)
    for level, (name, (arguments, result)) in enumerate(frames.items()):
        top, side = height - step * (level + 1), 0.5 * (depth - level)
        box = (-side, height - top), width + 2 * side, 2 * top - height
        axis.add_patch(Rectangle(*box, fill=False, ec=f"C{level}", lw=2))
        axis.text(-side + 0.1, top - 0.1, name, va="top", family="monospace", fontsize=9)
        ends = [(2.6 * place + 1.3, top, what) for place, what in enumerate(arguments)]
        for x, end, what in (*ends, (width / 2, height - top - step, result)):
            middle = end + step / 2 + 0.05
            text(x, middle, what)
            _arrow(axis, (x, middle - (0.4 if "\n" in what else 0.2)), (x, end), "gray")
    text(width / 2, height / 2, core)
    reach = 0.5 * depth + 0.1
    axis.set(xlim=(-reach, width + reach), ylim=(-0.1, height + 0.1))
    axis.axis("off")
    return finish(figure, title)


def _arrow(axis: plt.Axes, start: tuple, end: tuple, color: str) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": color})
