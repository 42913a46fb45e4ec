"""The reading edition: each lesson as a page, and an index, in a folder that needs nothing else.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.pages` writes build/html/.
"""

import base64
import io
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader
from nbconvert import TemplateExporter
from nbformat import NotebookNode
from PIL import Image
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from tqdm import tqdm

from helpers.tooling.lesson import drafts, files, form
from helpers.tooling.lesson.execution import end_cleanly_on_signals
from helpers.tooling.pages import predictions
from helpers.tooling.pages.prose import Prose

FOLDER = Path("build/html")
TEMPLATE = Path(__file__).parent
FLAT = 0.8
"""The share of its two commonest colours: 0.87 or more of a drawing, below 0.74 of an image."""


class Picture(NamedTuple):
    """A saved figure."""

    png: str
    """In base64."""
    alt: str


class Page(NamedTuple):
    """A lesson, ready for the template."""

    page: str
    notebook: str
    """The name of its file."""
    title: str
    promise: str
    """The first paragraph, as HTML."""
    times: str
    picture: Picture | None
    headings: list[tuple[str, str]]
    """Anchors and texts of the sections."""
    body: str
    """HTML."""


def page(lesson: Path) -> Page:
    """Turn a lesson into a page, with its saved outputs.

    Raises:
        ValueError: It is no lesson, says no times, or holds a formula that cannot be converted.
    """
    notebook = files.read(lesson)
    first = notebook.cells[0].source if notebook.cells else ""
    parts = re.match(r"# (.+)\n\n(.+)\n(?:.*\n)*\*(Reading: .+)\*", first)
    if not parts:
        raise ValueError(f"{lesson.name} does not begin with title, promise and `*Reading: ...*`")
    for cell in filter(form.has_figure, notebook.cells):
        cell.metadata.setdefault("alt", "A figure that has no description yet.")
    predictions.fold(notebook)
    prose = Prose()
    try:
        body = _exporter(prose).from_notebook_node(notebook)[0]
    except ValueError as error:
        raise ValueError(f"{lesson.name}: {error}") from error
    return Page(
        page=f"{lesson.stem[:2]}.html",
        notebook=lesson.name,
        title=parts[1],
        promise=Prose().html(parts[2]),
        times=parts[3],
        picture=_picture(notebook),
        headings=prose.headings,
        body=body,
    )


def build(folder: Path = FOLDER) -> None:
    """Write all pages; the folder is there in full or as it was before.

    Raises:
        ValueError: As in `page`, there are no lessons, or the folder cannot be written.
    """
    pages = [page(lesson) for lesson in tqdm(files.find(), desc="pages", unit="lesson")]
    jinja = Environment(loader=FileSystemLoader(TEMPLATE), trim_blocks=True)
    jinja.filters["kind"] = _kind
    with drafts.replaced(folder) as draft:
        overview = jinja.get_template("overview.html.j2").render(lessons=pages)
        (draft / "index.html").write_text(overview, encoding="utf-8")
        around = [None, *pages, None]
        for before, each, after in zip(around, pages, around[2:], strict=False):
            text = jinja.get_template("page.html.j2").render(
                lesson=each, previous=before, next=after
            )
            (draft / each.page).write_text(text, encoding="utf-8")
        shutil.copy(TEMPLATE / "script.js", draft)
        style = (TEMPLATE / "style.css").read_text(encoding="utf-8")
        (draft / "style.css").write_text(style + _colours(), encoding="utf-8")


def _exporter(prose: Prose) -> TemplateExporter:
    exporter = TemplateExporter(
        extra_template_basedirs=[str(TEMPLATE.parent)],
        template_name=TEMPLATE.name,
        template_file="cells.html.j2",
        filters={"prose": prose.html, "coloured": _coloured, "folded": _folded, "kind": _kind},
    )
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    return exporter


def _coloured(source: str) -> str:
    return highlight(source, PythonLexer(), HtmlFormatter())


def _colours() -> str:
    """Return the colours of code, for light and for dark."""
    light, dark = (
        HtmlFormatter(style=style).get_style_defs(".highlight")
        for style in ("xcode", "github-dark")
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _folded(cell: NotebookNode) -> str:
    """Say under which name a code cell is folded, if it is."""
    if "solution" in files.tags(cell):
        return "Solution"
    return "Set-up" if cell.source == form.SETUP else ""


def _kind(png: str) -> str:
    """Say whether a picture is a `drawing` in few flat colours, or shows `shades`.

    Dark mode inverts drawings. Shades have a meaning, and the text speaks of dark and pale.
    """
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    pixels = picture.width * picture.height
    counts = sorted(count for count, _ in picture.getcolors(pixels))
    return "drawing" if sum(counts[-2:]) > FLAT * pixels else "shades"


def _picture(notebook: NotebookNode) -> Picture | None:
    """Choose the figure for the index: of all that a lesson has, the one that shows most."""
    pictures = [
        Picture(output.data["image/png"].replace("\n", ""), cell.metadata.alt)
        for cell in files.code_cells(notebook)
        if form.has_figure(cell)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    return max(pictures, key=lambda each: len(each.png), default=None)


if __name__ == "__main__":
    end_cleanly_on_signals()
    try:
        build()
    except ValueError as error:
        sys.exit(str(error))
    print(f"the reading edition is in {FOLDER}: open {FOLDER}/index.html")
