"""Copies of lessons for Colab, each of which stands alone: the helpers travel inside.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.colab 3 --repo owner/name`
rebuilds build/colab/ with lesson 3, or with all lessons if none is named. A copy installs nothing
without being asked. With a repository, links in the copies and in README.md open the copies on its
branch `colab`, where `.ci/colab` puts them.
"""

import argparse
import copy
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from helpers.tooling.lesson import copies, drafts, endings, files, imports, parameters

FOLDER = Path("build/colab")
README = Path("README.md")
LINKS = r"(?s)(<!-- make colab REPO=owner/name writes the links -->\n).*?(<!-- end -->)"
OPEN = "https://colab.research.google.com/github/{repo}/blob/colab/"
"""Where Colab opens copies: `.ci/colab` publishes them on the branch `colab` of a repository."""
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
SECTION = "colab-helpers"
METADATA = {"colab": {"provenance": [], "collapsed_sections": [SECTION]}}
GPU = ("07_speed_and_memory", "07b_which_way")
"""Lessons that ask for a GPU: they measure times. In the others, networks are tiny."""
NEEDS_OPACUS = "%%needs_opacus"
"""The magic, defined by `OPACUS`, of cells that are run only as far as they can be without it."""
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}
HEADING = "Helpers (run, no need to read)"
ABOUT = """\
These cells write the modules that this lesson imports into the folder `helpers`, each as it is in \
the collection. After a change to one, run all cells again from the top."""
FOLDERS = """\
# @title Folders for them
import sys
from pathlib import Path

for folder in {folders}:
    Path(folder).mkdir(parents=True, exist_ok=True)
for name in [name for name in sys.modules if name.partition(".")[0] == "helpers"]:
    del sys.modules[name]  # so that a helper that was edited is imported anew"""
READY = """\
# @title Is this machine ready?
import torch

version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if version < (2, 11):
    raise RuntimeError(
        "this lesson needs torch 2.11 or newer, here is " + torch.__version__ + ": choose a newer "
        "runtime (Runtime > Change runtime type), or run `%pip install -U torch` in a cell of your "
        "own, restart the session, and run all cells"
    )"""
OPACUS = '''\
# @title Opacus, which some cells need: tick the box, and run all cells
install_opacus = False  # @param {type: "boolean"}
from IPython.core.magic import register_cell_magic

if install_opacus:
    %pip install -q opacus==1.6.0


@register_cell_magic
def needs_opacus(_, cell):
    """Run a cell; without Opacus, only up to where it is needed."""
    try:
        import opacus
    except ImportError:
        try:
            exec(cell, get_ipython().user_ns)
        except (ImportError, NameError) as error:
            print(f"What follows needs Opacus ({error}): the cell above section 1 installs it.")
    else:
        get_ipython().run_cell(cell).raise_error()'''
BESIDE = "run all cells from the top, those under the heading Helpers write it"


def standalone(
    lesson: Path, repo: str | None, notebook: NotebookNode | None = None
) -> NotebookNode:
    """Derive from a lesson a notebook that needs nothing but torch and what Colab has.

    Its links lead to a repository on GitHub, `owner/name`: to copies on the branch `colab`, to
    sources on main; with None there are none. An already derived notebook, such as the students',
    is changed and returned.
    """
    notebook = notebook or copies.derive(lesson, BESIDE)
    opened = OPEN.format(repo=repo) if repo else None
    copies.relink_headings(notebook, "#scrollTo=")
    copies.relink(notebook, opened)
    needed = imports.reached(notebook)
    for cell in files.code_cells(notebook):
        _change_by_tags(cell, lesson)
    if opened:
        badge = f"[![Open in Colab]({BADGE})]({opened}{lesson.name})"
        source = f"https://github.com/{repo}/blob/main/notebooks/{lesson.name}"
        notebook.cells[0].source += f"\n\n{badge} [Source on GitHub]({source})"
    if needed:  # lesson 0 needs no helpers
        _insert_checks(notebook)
        notebook.cells[1:1] = _section(needed)
        notebook.metadata.update(copy.deepcopy(METADATA))
    if lesson.stem in GPU:
        notebook.metadata.accelerator = "GPU"
        notebook.metadata.colab.gpuType = "T4"
    for cell in notebook.cells:
        cell.metadata["id"] = cell.id  # by which Colab knows a cell
    return notebook


def _change_by_tags(cell: NotebookNode, lesson: Path) -> None:
    """Give a code cell the form that Colab shows, or the magic that it needs."""
    tags = files.tags(cell)
    if "parameters" in tags:
        cell.source = parameters_form(lesson)
        cell.metadata["cellView"] = "form"
    if "solution" in tags:
        cell.source = f"# @title Solution\n{cell.source}"
        cell.metadata["cellView"] = "form"
    if "needs-opacus" in tags:
        cell.source = f"{NEEDS_OPACUS}\n{cell.source}"


def _insert_checks(notebook: NotebookNode) -> None:
    """Insert the cells that check the machine, after the parameters."""
    checks = [_folded("colab-ready", READY)]
    for cell in notebook.cells:
        if "parameters" in files.tags(cell):
            position = notebook.cells.index(cell) + 1
    if any(cell.source.startswith(NEEDS_OPACUS) for cell in notebook.cells):
        checks.append(_folded("colab-opacus", OPACUS))
    notebook.cells[position:position] = checks


def parameters_form(lesson: Path) -> str:
    """Write the parameters of a lesson as a form: fields to fill in, with their meaning above."""
    lines = ["# @title Parameters"]
    for name, (default, meaning) in parameters.declared(lesson).items():
        kind = "integer" if isinstance(default, int) else "string"
        value = json.dumps(default)  # a form wants double quotes
        lines.append(f"# @markdown `{name}`: {meaning}")
        lines.append(f'{name} = {value}  # @param {{type: "{kind}"}}')
    return "\n".join(lines)


def build(chosen: Sequence[Path], repo: str | None) -> None:
    """Rebuild the folder of copies with some lessons, and README's links to a repository.

    Raises:
        ValueError: The repository's name is invalid, or another process makes the folder.
    """
    if repo is not None and not re.fullmatch(r"[\w-]+/[\w.-]+", repo):
        raise ValueError(f"REPO must be owner/name, such as ada/gradients, got {repo!r}")
    with drafts.alone(FOLDER), drafts.replaced(FOLDER) as draft:
        draft.mkdir()
        for lesson in chosen:
            nbformat.write(standalone(lesson, repo), draft / lesson.name)
    if repo:
        _write_links(repo)


def _write_links(repo: str) -> None:
    """Write into README a link to each lesson's copy."""
    opened = OPEN.format(repo=repo)
    links = [f"[{files.number(lesson)}]({opened}{lesson.name})" for lesson in files.find()]
    line = f"Open in Colab: {', '.join(links)}."
    text = re.sub(LINKS, rf"\1{line}\n\2", README.read_text("utf-8"))
    with drafts.replaced(README) as draft:
        draft.write_text(text, "utf-8")


def _section(needed: Sequence[Path]) -> list[NotebookNode]:
    """Make the folded section that writes the modules of `helpers`, up to the next heading."""
    collapsed = {"jp-MarkdownHeadingCollapsed": True}
    folders = sorted({path.parent.as_posix() for path in needed})
    cells = [
        new_markdown_cell(f"## {HEADING}", id=SECTION, metadata=collapsed),
        new_markdown_cell(ABOUT, id="colab-about"),  # folded as well, under the heading
        _folded("colab-folders", FOLDERS.format(folders=json.dumps(folders))),
    ]
    for path in needed:
        name = path.as_posix()
        text = (imports.ROOT / path).read_text("utf-8").rstrip()
        identity = name.removesuffix(path.suffix).replace("/", "-")
        cells.append(_folded(identity, f"%%writefile {name}\n# @title {name}\n{text}"))
    cells.append(new_markdown_cell("## Parameters", id="colab-parameters"))
    return cells


def _folded(identity: str, source: str) -> NotebookNode:
    return new_code_cell(source, id=identity, metadata=copy.deepcopy(FOLDED))


if __name__ == "__main__":
    endings.cleanly_on_signals()
    endings.in_one_sentence()
    parser = argparse.ArgumentParser("colab")
    parser.add_argument("lessons", nargs="*", help="numbers or names; none means all")
    parser.add_argument("--repo", help="owner/name that links lead to; none means no such links")
    options = parser.parse_args()
    try:
        chosen = files.choose(options.lessons)
        build(chosen, options.repo)
    except ValueError as error:
        sys.exit(str(error))
    print(f"for Colab, in {FOLDER}: {', '.join(lesson.stem for lesson in chosen)}")
