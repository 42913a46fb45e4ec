"""The plot of a timing on several devices: a bar for each time that was measured."""

import io
from base64 import b64encode
from typing import Any

import matplotlib
from matplotlib.figure import Figure

INK = "#808182"
"""Stands for the colour of text while matplotlib draws."""
STYLE = {
    "svg.hashsalt": "report",  # the same ids each time, so the same bytes
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}
COLOURS = (
    "<style>:root { color: #222 } "
    "@media (prefers-color-scheme: dark) { :root { color: #ddd } }</style>"
)
WIDE = 20
"""The ratio of the longest bar to the shortest from which the axis is logarithmic."""


def draw(tables: dict[str, dict[str, Any]]) -> str:
    """Draw times as multiples of the reference.

    A time that is not there is a gap in which it says why. The axis is logarithmic if short bars
    could not be told apart otherwise.

    Args:
        tables: `{device: table}`, timings of one reference, from `report_tables`.

    Returns:
        The address of an SVG image, in the colours of a light or dark page.
    """
    methods = list(dict.fromkeys(row["method"] for t in tables.values() for row in t["rows"]))
    height = 0.8 / len(tables)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 0.8 + 0.3 * len(methods) * max(1, len(tables) * 0.7)))
        axes = figure.subplots()
        lengths = []
        for n, (device, table) in enumerate(tables.items()):
            rows = {row["method"]: row for row in table["rows"]}
            measured = {m: row["ratio"] for m, row in rows.items() if not row["note"]}
            places = [methods.index(method) + n * height for method in measured]
            bars = axes.barh(places, list(measured.values()), height, color=f"C{n}", label=device)
            axes.bar_label(bars, fmt="%.2f", padding=3)
            lengths += measured.values()
            for place, method in enumerate(methods):
                if method not in measured:
                    note = rows[method]["note"] if method in rows else "not measured"
                    label = f"{device}: {note}" if len(tables) > 1 else note
                    axes.text(
                        *(0.01, place + n * height, _plain(label)),
                        transform=axes.get_yaxis_transform(),
                        va="center",
                        style="italic",
                    )
        middle = (len(tables) - 1) * height / 2
        axes.set_yticks([place + middle for place in range(len(methods))], map(_plain, methods))
        axes.set_ylim(len(methods) - 1 + middle + 0.5, middle - 0.5)
        axes.margins(x=0.12)
        if lengths and max(lengths) > WIDE * min(lengths):
            axes.set_xscale("log")
            shortest, longest = min(lengths) / 2, max(lengths)
            axes.set_xlim(shortest, longest * (longest / shortest) ** 0.15)
            axes.xaxis.set_major_formatter("{x:g}")
        reference = next(iter(tables.values()))["reference"]
        axes.set_xlabel(_plain(f"times {reference}"))
        if len(tables) > 1:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(tables))
        written = io.StringIO()
        figure.savefig(written, format="svg", bbox_inches="tight", metadata={"Date": None})
    svg = written.getvalue().replace(INK, "currentColor").replace("<defs>", COLOURS + "<defs>", 1)
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"


def _plain(text: str) -> str:
    """Let text be text: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")
