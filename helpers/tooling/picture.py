"""The picture at the top of README.md, put together from figures that lessons have saved.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.picture`.
"""

import base64
import io
from pathlib import Path

from PIL import Image

from helpers.tooling.lesson import files

PICTURE = Path(".github/picture.png")
FIGURES = (("01_naive_loop", "kernel-picture"), ("04_jacobians", "jacobian-picture"))
"""The figures, from left to right: a lesson's name and the id of the cell that draws it."""
WIDTH = 1200
"""Pixels."""


def compose(folder: Path = files.FOLDER) -> Image.Image:
    """Set saved figures of lessons side by side, all of one height."""
    figures = [_figure(folder / f"{lesson}.ipynb", cell) for lesson, cell in FIGURES]
    height, left = round(WIDTH / sum(each.width / each.height for each in figures)), 0
    picture = Image.new("RGB", (WIDTH, height), "white")
    for figure in figures:
        width = round(figure.width * height / figure.height)
        picture.paste(figure.resize((width, height)), (left, 0))
        left += width
    return picture


def _figure(lesson: Path, identity: str) -> Image.Image:
    (cell,) = (each for each in files.read(lesson).cells if each.id == identity)
    (png,) = (
        each.data["image/png"] for each in cell.outputs if "image/png" in each.get("data", {})
    )
    return Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")


if __name__ == "__main__":
    compose().save(PICTURE, optimize=True)
