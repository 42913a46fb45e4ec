"""What happens to arguments, drawn with boxes and arrows."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from helpers.plots.figures import WIDTH, finish


def in_dims(arguments: dict[str, tuple[str, int | None]], function: str, *, title: str) -> Figure:
    """Draw what `vmap` hands to each call: a slice of an argument, or the whole of it.

    Args:
        arguments: `{name: (what it is, in_dim)}`; `in_dim` is 0 for a batch, `None` for what all
            calls share.
        function: The name of the function that is mapped.
        title: What there is to see.
    """
    slices = ["0", "1", "...", "B-1"]
    colors = ["C0", "C1", "white", "C2"]
    width = 4.6 * len(arguments) - 0.6  # an argument is 4 wide, a gap 0.6
    figure, axis = plt.subplots(figsize=(WIDTH, 4.1), layout="constrained")
    calls = width * np.array([0.14, 0.43, 0.645, 0.86])  # the third is dots and needs less room
    half = 0.137 * width
    for x, index, color in zip(calls, slices, colors, strict=True):
        if index == "...":
            axis.text(x, 0.5, index, ha="center", va="center", fontsize=12)
            continue
        axis.add_patch(Rectangle((x - half, 0), 2 * half, 1, fill=False, ec=color, lw=2))
        axis.text(x, 0.5, f"{function}\ncall {index}", ha="center", va="center", fontsize=9)
    for column, (name, (what, dim)) in enumerate(arguments.items()):
        left = 4.6 * column
        axis.text(left + 2, 5.6, name, ha="center", fontsize=10, family="monospace")
        axis.text(left + 2, 4.5, f"{what}\nin_dim {dim}", ha="center", fontsize=9)
        if dim is None:
            axis.add_patch(Rectangle((left, 3.5), 4, 0.8, fc="lightgray", ec="gray"))
        for number, (index, color) in enumerate(zip(slices, colors, strict=True)):
            middle = left + 2 if dim is None else left + number + 0.5
            if dim is not None:
                axis.add_patch(
                    Rectangle((left + number, 3.5), 1, 0.8, fc=color, ec="gray", alpha=0.6)
                )
                axis.text(middle, 3.9, index, ha="center", va="center", fontsize=9)
            if index != "...":
                arrow = FancyArrowPatch(
                    (middle, 3.5), (calls[number], 1.02), arrowstyle="->", mutation_scale=10
                )
                arrow.set_color("gray" if dim is None else color)
                axis.add_patch(arrow)
    axis.set(xlim=(-0.2, width + 0.2), ylim=(-0.1, 6.1))
    axis.axis("off")
    return finish(figure, title)


def nested(frames: Mapping[str, tuple[Sequence[str], str]], core: str, *, title: str) -> Figure:
    """Draw functions around functions: what goes into each, and what comes out of it.

    Args:
        frames: `{name of the function: (a text for each argument, one for the result)}`, the
            outermost first.
        core: What the innermost function does.
        title: What there is to see.
    """
    depth, columns = len(frames), len(next(iter(frames.values()))[0])
    width, step = 2.6 * columns, 1.5  # a text is 2.6 wide, a frame 1.5 below the one around it
    height = 2 * step * depth + 1.6  # the core is 1.6 high
    figure, axis = plt.subplots(figsize=(WIDTH, 5.6), layout="constrained")
    for level, (name, (arguments, result)) in enumerate(frames.items()):
        top, side = height - step * (level + 1), 0.5 * (depth - level)
        box = Rectangle((-side, height - top), width + 2 * side, 2 * top - height, fill=False, lw=2)
        box.set_edgecolor(f"C{level}")
        axis.add_patch(box)
        axis.text(-side + 0.1, top - 0.1, name, va="top", family="monospace", fontsize=9)
        places = [(column + 0.5) * width / columns for column in range(columns)]
        ends = [(x, top + step, top, text) for x, text in zip(places, arguments, strict=True)]
        ends.append((width / 2, height - top, height - top - step, result))
        for x, start, end, text in ends:
            middle = (start + end) / 2 + 0.05
            axis.text(x, middle, text, ha="center", va="center", fontsize=9)
            below = middle - (0.4 if "\n" in text else 0.2)
            arrow = FancyArrowPatch((x, below), (x, end), arrowstyle="->", mutation_scale=10)
            arrow.set_color("gray")
            axis.add_patch(arrow)
    axis.text(width / 2, height / 2, core, ha="center", va="center", fontsize=9)
    reach = 0.5 * depth + 0.1
    axis.set(xlim=(-reach, width + reach), ylim=(-0.1, height + 0.1))
    axis.axis("off")
    return finish(figure, title)
