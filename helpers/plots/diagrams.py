"""What happens to arguments, drawn with boxes and arrows."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from helpers.plots.figures import finish


def in_dims(arguments: dict[str, tuple[str, int | None]], function: str) -> Figure:
    """Draw what `vmap` hands to each call: a slice of an argument, or the whole of it.

    Args:
        arguments: `{name: (what it is, in_dim)}`; `in_dim` is 0 for a batch, `None` for what all
            calls share.
        function: The name of the function that is mapped.
    """
    slices = ["0", "1", "...", "B-1"]
    colors = ["tab:blue", "tab:orange", "white", "tab:green"]
    width = 4.6 * len(arguments) - 0.6  # an argument is 4 wide, a gap 0.6
    figure, axis = plt.subplots(figsize=(5.8, 3.9), layout="constrained")
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
    return finish(figure)


def nested(frames: Mapping[str, tuple[Sequence[str], str]], core: str) -> Figure:
    """Draw functions around functions: what goes into each, and what comes out of it.

    Args:
        frames: `{name of the function: (a text for each argument, one for the result)}`, the
            outermost first.
        core: What the innermost function does.
    """
    depth, rows = len(frames), len(next(iter(frames.values()))[0])
    column, center = 1.6, (rows - 1) / 2
    width = 2 * column * depth + 2  # the core is 2 wide
    figure, axis = plt.subplots(figsize=(9, 3.3), layout="constrained")
    for level, (name, (arguments, result)) in enumerate(frames.items()):
        left, half = column * (level + 1), center + 0.5 + 0.4 * (depth - level)
        box = Rectangle((left, center - half), width - 2 * left, 2 * half, fill=False, lw=2)
        box.set_edgecolor(f"C{level}")
        axis.add_patch(box)
        axis.text(left + 0.06, center + half - 0.06, name, va="top", family="monospace")
        ends = [
            (left - column, left + 0.04, rows - 1 - row, text) for row, text in enumerate(arguments)
        ]
        ends.append((width - left, width - left + column, center, result))
        for start, end, height, text in ends:
            axis.text((start + end) / 2, height + 0.05, text, ha="center", va="bottom", fontsize=8)
            shape = {"arrowstyle": "->", "mutation_scale": 10, "color": "gray"}
            axis.add_patch(FancyArrowPatch((start + 0.1, height), (end, height), **shape))
    axis.text(width / 2, center, core, ha="center", va="center", fontsize=9)
    axis.set(xlim=(0, width), ylim=(-0.6 - 0.4 * depth, rows - 0.4 + 0.4 * depth))
    axis.axis("off")
    return finish(figure)
