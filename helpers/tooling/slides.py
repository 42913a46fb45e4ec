"""Lessons as slides, each in one file that needs no network.

`python -m helpers.tooling.slides 3` rebuilds build/slides/ with lesson 3, or with all lessons if
none is named. A section is a slide, and below it is one for each prediction and exercise; what
answers a prediction waits for the next step. slides.html.j2 sets the style and cuts what is long.
"""

import re
import sys
from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path

from nbconvert import SlidesExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from helpers.tooling.lesson import copies, drafts, files, formulas, predictions
from helpers.tooling.lesson.execution import end_cleanly_on_signals

FOLDER = Path("build/slides")
FOLD = r"</?(details|summary)>"  # which is open on a slide, unless it holds a hint
HIDDEN = {"parameters", "solution", "hide-input"}


def deck(lesson: Path) -> NotebookNode:
    """Derive a notebook of slides from a lesson: without set-up, solutions, hints and checks."""
    notebook = files.read(lesson)
    copies.relink(notebook, None)
    predictions.fold(notebook)
    notebook.cells = [slide for cell in notebook.cells for slide in _slides(cell)]
    return notebook


def _slides(cell: NotebookNode) -> list[NotebookNode]:
    """Return the cells that show one cell, with the type of slide that each begins."""
    if cell.cell_type == "markdown":
        text = re.sub(r"(?s)<details><summary>Hint.*?</details>", "", cell.source)
        text = re.sub(FOLD, "", text)
        sections = re.split(r"(?m)^(?=## )", text.replace(copies.EXERCISES, ""))
        slides = [new_markdown_cell(section.strip()) for section in sections if section.strip()]
        for slide in slides:
            below = slide.source.startswith("**Exercise") or predictions.PREDICT in slide.source
            kind = "subslide" if below else "-"
            kind = "slide" if slide.source.startswith(("# ", "## ")) else kind
            slide.metadata.slideshow = {"slide_type": kind}
        return slides
    if "exercises.check(" in cell.source:
        return []
    hidden = HIDDEN & {*files.tags(cell)}
    shown = [] if hidden else [new_code_cell(cell.source)]
    output = new_code_cell("", outputs=cell.outputs, metadata=cell.metadata)
    output.metadata.transient = {"remove_source": True}
    if "answer" not in cell.metadata:
        return [*shown, output]
    output.metadata.slideshow = {"slide_type": "fragment"}
    return [*shown, output, new_markdown_cell(re.sub(FOLD, "", cell.metadata.answer))]


def build(chosen: Sequence[Path], folder: Path = FOLDER) -> None:
    """Rebuild a folder with the slides of some lessons."""
    reveal = resources.files("sphinx_revealjs") / "_static" / "revealjs"
    names = {"css": "dist/reveal.css", "js": "dist/reveal.js", "license": "LICENSE"}
    sources = {resource: (reveal / name).read_text("utf-8") for resource, name in names.items()}
    renderer = IPythonRenderer(escape=False, anchor_link_text="")
    renderer.inline_math = partial(formulas.mathml, block=False)
    renderer.block_math = partial(formulas.mathml, block=True)
    here = [str(Path(__file__).parent)]
    exporter = SlidesExporter(template_file="slides.html.j2", extra_template_paths=here)
    exporter.register_filter("markdown2html", MarkdownWithMath(renderer=renderer).render)
    with drafts.replaced(folder) as draft:
        draft.mkdir()
        for lesson in chosen:
            page, _ = exporter.from_notebook_node(deck(lesson), {"reveal_js": sources})
            (draft / f"{lesson.stem}.slides.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    end_cleanly_on_signals()
    try:
        chosen = files.choose(sys.argv[1:])
    except ValueError as error:
        sys.exit(str(error))
    build(chosen)
    print(f"slides, in {FOLDER}: {', '.join(lesson.stem for lesson in chosen)}")
