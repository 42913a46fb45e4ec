"""The picture at the top of README.md, put together from figures that lessons have saved.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.picture`.
"""

import base64
import io
from pathlib import Path

from PIL import Image

from helpers.tooling.lesson import files

PICTURE = Path(".github/picture.png")
ROWS = (
    (("01_naive_loop", "kernel-picture"), ("01_naive_loop", "similarity-picture")),
    (("04_jacobians", "jacobian-picture"),),
)
"""The figures, row by row: a lesson's name and the id of the cell that draws it."""
WIDTH = 1200
"""Pixels."""


def compose(folder: Path = files.FOLDER) -> Image.Image:
    """Set the saved figures of lessons out in rows, each row as wide as the picture.

    Args:
        folder: Where the lessons are.

    Raises:
        ValueError: A lesson or one of its figures is not there.
    """
    rows = []
    for row in ROWS:
        figures = [_figure(lesson, cell, folder) for lesson, cell in row]
        height = round(WIDTH / sum(figure.width / figure.height for figure in figures))
        widths = [round(figure.width * height / figure.height) for figure in figures]
        rows.append([f.resize((w, height)) for f, w in zip(figures, widths, strict=True)])
    picture = Image.new("RGB", (WIDTH, sum(row[0].height for row in rows)), "white")
    top = 0
    for row in rows:
        left = 0
        for figure in row:
            picture.paste(figure, (left, top))
            left += figure.width
        top += row[0].height
    return picture


def _figure(name: str, cell_id: str, folder: Path) -> Image.Image:
    (lesson,) = files.choose([name], folder)
    for cell in files.code_cells(files.read(lesson)):
        for output in cell.outputs if cell.id == cell_id else []:
            if "image/png" in output.get("data", {}):
                png = base64.b64decode(output.data["image/png"])
                return Image.open(io.BytesIO(png)).convert("RGB")
    raise ValueError(f"{lesson.name} has no saved figure in a cell {cell_id!r}")


if __name__ == "__main__":
    compose().save(PICTURE, optimize=True)
