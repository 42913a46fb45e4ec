"""A lesson as the reading edition shows it."""

import base64
import io
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from PIL import Image

from helpers.tooling import colab
from helpers.tooling.lesson import files, form
from helpers.tooling.pages import predictions

FLAT = 0.8
"""The share of its two commonest colours: 0.87 or more of a drawing, below 0.74 of an image."""
SMALL = (320, 200)
"""The size of a thumbnail in pixels, at most: twice that in which it is shown."""
NOTE = "This page shows saved results. Where the text says “run”, run the notebook."


def read(text: str) -> NotebookNode:
    """Read a lesson, fold what it folds, set-up and answers, and hand on alternative texts."""
    notebook = nbformat.reads(text, nbformat.NO_CONVERT)
    first = notebook.cells[0]
    first.source = re.sub(r"(?m)^\*Reading: .+\*$", rf"\g<0>\n\n*{NOTE}*", first.source)
    predictions.fold(notebook)
    notebook.cells = [part for cell in notebook.cells for part in _parts(cell)]
    return notebook


def entry(lesson: Path, repo: str | None) -> str:
    """Write what the index says of a lesson: title, promise, doors with their times, a thumbnail.

    The doors are its page, its copy for Colab in `repo`, `owner/name` on GitHub or None, and that
    copy as a file.
    """
    notebook = files.read(lesson)
    first = r"# (.+)\n\n(.+)\n(?:.*\n)*\*Reading: (.+?)\. Running: (.+)\.\*"
    title, promise, reading, running = re.match(first, notebook.cells[0].source).groups()
    run = f'<a href="_sources/{lesson.name}" download>download</a> and run'
    if repo:
        run = f"[open in Colab]({colab.OPEN.format(repo=repo)}{lesson.name}), or {run}"
    text = f"\n## [{title}]({lesson.name})\n\n{promise}\n\n"
    text += f"[Read]({lesson.name}): {reading}; {run}: {running}.\n"
    if pictures := [*filter(None, map(_png, notebook.cells))]:
        png = max(pictures, key=len)
        source = f"data:image/png;base64,{thumbnail(png)}"
        text += f'\n<img class="thumbnail {kind(png)}" src="{source}" alt="">\n'
    return text


def thumbnail(png: str) -> str:
    """Return a picture, in base64, as a small one that tells lessons apart, and shows no more."""
    small = _picture(png)
    small.thumbnail(SMALL)
    small.quantize(64).save(file := io.BytesIO(), format="png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def kind(png: str) -> str:
    """Return whether a picture, in base64, is a `drawing` in few flat colours or shows `shades`.

    The dark theme inverts drawings. Shades have a meaning, and the text speaks of dark and pale.
    """
    picture = _picture(png)
    pixels = picture.width * picture.height
    counts = sorted(count for count, _ in picture.getcolors(pixels))
    return "drawing" if sum(counts[-2:]) > FLAT * pixels else "shades"


def _picture(png: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")


def _png(cell: NotebookNode) -> str:
    """Return the last picture that a cell has saved, in base64, or an empty text."""
    saved = [each.get("data", {}).get("image/png", "") for each in cell.get("outputs", [])]
    return next(filter(None, reversed(saved)), "")


def _width(cell: NotebookNode) -> int:
    """Return how wide the last picture of a cell is shown, in CSS pixels: half of those it has."""
    shown = [each for each in cell.outputs if "image/png" in each.get("data", {})][-1]
    if "image/png" in shown.metadata:
        return shown.metadata["image/png"]["width"]
    return _picture(shown.data["image/png"]).width  # not drawn again since they have twice as many


def _parts(cell: NotebookNode) -> list[NotebookNode]:
    """Return the cells that show one cell, with what MyST-NB needs to know of each."""
    if cell.cell_type != "code":
        return [cell]
    image = {"alt": cell.metadata.get("alt", "A figure.")}
    if _png(cell):
        image |= {"classes": kind(_png(cell)), "width": f"{_width(cell)}px"}  # resized: a link
    shown, tags = {"image": image}, files.tags(cell)
    name = "Solution" if "solution" in tags else "Set-up" if cell.source == form.SETUP else ""
    if name or cell.metadata.get("jupyter", {}).get("source_hidden"):
        name = name or "Code"
        shown |= {"code_prompt_show": name, "code_prompt_hide": name}
        tags = [*tags, "hide-input"]
    cell.metadata |= {"mystnb": shown, "tags": tags}
    if "answer" not in cell.metadata:
        return [cell]
    # The output goes to a cell of its own, so that a fold can begin before it; MyST-NB leaves a
    # cell without code out.
    outputs, cell.outputs = cell.outputs, []
    return [
        cell,
        new_markdown_cell('<details class="answer"><summary>Show what happens</summary>'),
        new_code_cell("...", outputs=outputs, metadata=cell.metadata | {"tags": ["remove-input"]}),
        new_markdown_cell(f"{cell.metadata.answer}\n\n</details>"),
    ]
