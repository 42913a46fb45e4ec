"""The picture of measured times: multiples of a reference, side by side for several runs."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from helpers.plots.figures import WIDTH, finish

KEPT = ", freed memory kept"
"""What ends the name of a method that was measured while freed memory was kept."""


def multiples(runs: Mapping[str, Mapping[str, tuple[float, float]]], *, reference: str) -> Figure:
    """Draw how many times the reference each method takes, a line each, the fastest on top.

    A method that was also measured with freed memory kept has both points on its line, the latter
    hollow. Methods are sorted by the last run that has them. A line goes from one quartile to the
    other where they are a third of the median or more apart.

    Args:
        runs: `{name of the run: {method: (median, spread)}}`, of more or fewer of the same methods.
        reference: The method that is 1.
    """
    latest: dict[str, float] = {}
    for measured in runs.values():
        unit = measured[reference][0]
        for method, (median, _) in measured.items():
            if not (method.endswith(KEPT) and method.removesuffix(KEPT) in measured):
                latest[method.removesuffix(KEPT)] = median / unit
    methods = sorted(latest, key=latest.get)
    figure, axis = plt.subplots(figsize=(WIDTH, 0.42 * len(methods) + 1.6), layout="constrained")
    for number, (run, measured) in enumerate(runs.items()):
        unit = measured[reference][0]
        for kept in (False, True):
            there = {m: t for m, t in measured.items() if m.endswith(KEPT) == kept}
            times = [median / unit for median, _ in there.values()]
            spreads = [spread / unit if 3 * spread > t else 0 for t, spread in there.values()]
            axis.errorbar(
                times,
                [methods.index(method.removesuffix(KEPT)) for method in there],
                xerr=[each / 2 for each in spreads],
                fmt="os^D"[number % 4],
                color=f"C{number}",
                markerfacecolor="white" if kept else f"C{number}",
                label=run + (KEPT if kept else ""),
            )
    axis.axvline(1, color="black", linewidth=0.8, zorder=0)
    for place, method in enumerate(methods):  # above its line, since names are long
        axis.annotate(method, (0.01, place - 0.33), xycoords=axis.get_yaxis_transform(), fontsize=9)
    axis.set_yticks(range(len(methods)), [])
    axis.set_ylim(len(methods) - 0.5, -0.8)
    axis.set(xscale="log", xlabel=f"time, as a multiple of the {reference}")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.margins(x=0.08)
    axis.grid(alpha=0.3)
    return finish(figure, legend=1)
