"""What all figures share: width, colors, axes, and being shown once."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

WIDTH = 5.4
"""Inches. On a phone, 358 pixels wide, text of 9 points is then 8 pixels high; none is smaller."""
# Colors that color-blind readers can tell apart (Okabe and Ito, 2008), for what lessons draw, too.
plt.rcParams["axes.prop_cycle"] = plt.cycler(
    color=["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#555555"]
)


def axes(
    height: float,
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = WIDTH,
    grid: str = "",
    **options: object,
) -> tuple[Figure, list[plt.Axes]]:
    """Make a figure, sizes in inches, and its axes, row by row, with a grid of "x" or "both"."""
    figure = plt.figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **options)
    panels = list(panels.flat)
    if grid:
        for axis in panels:
            axis.grid(axis=grid, alpha=0.3)
    return figure, panels


def finish(
    figure: Figure, title: str = "", *, legend: int = 0, xlabel: str = "", ylabel: str = ""
) -> Figure:
    """Title and close the figure, so that a notebook shows it only once.

    A legend with `legend` columns goes below the axes, not on them: one for all axes, each name
    once. `ylabel` labels all axes, `xlabel` the last.
    """
    figure.suptitle(title, fontsize=11)
    handles_by_name: dict[str, object] = {}
    for axis in figure.axes:
        handles, names = axis.get_legend_handles_labels()
        for handle, name in zip(handles, names, strict=True):
            handles_by_name.setdefault(name, handle)
        if ylabel:
            axis.set_ylabel(ylabel)
    if xlabel:
        figure.axes[-1].set_xlabel(xlabel)
    if legend:
        figure.legend(
            handles_by_name.values(),
            handles_by_name.keys(),
            loc="outside lower center",
            ncols=legend,
            fontsize=9,
        )
    # Jupyter shows every open figure when a cell ends, and besides the one that the cell returns.
    plt.close(figure)
    return figure
