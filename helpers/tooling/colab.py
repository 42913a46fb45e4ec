"""Copies of lessons for Colab, each of which stands alone: the helpers travel inside.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.colab 3 --repo owner/name`
makes build/colab/ anew with lesson 3, and with all lessons if none is named. A copy installs
nothing. With a repository, links in the copies and in README.md open the copies on its branch
`colab`, where `.ci/colab` puts them.
"""

import argparse
import copy
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from helpers.tooling.lesson import copies, drafts, files, imports, parameters
from helpers.tooling.lesson.execution import end_cleanly_on_signals

FOLDER = Path("build/colab")
README = Path("README.md")
LOWEST_TORCH = (2, 6)
SECTION = "colab-helpers"
METADATA = {
    "accelerator": "GPU",
    "colab": {"provenance": [], "gpuType": "T4", "collapsed_sections": [SECTION]},
}
COLLAPSED = "jp-MarkdownHeadingCollapsed"
"""What says to JupyterLab, in a heading's metadata, what `collapsed_sections` says to Colab."""
CHOICES = {"device": '["auto", "cpu", "cuda", "mps"]', "dataset": '["digits", "random"]'}
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}
BRANCH = "colab"
"""The branch on which `.ci/colab` publishes the copies: Colab opens what is in a repository."""
OPEN = "https://colab.research.google.com/github/{repo}/blob/{branch}/{name}"
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
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
if version < {lowest}:
    raise RuntimeError(
        "this lesson needs torch {wanted} or newer, here is " + torch.__version__ + ": choose a "
        "newer runtime (Runtime > Change runtime type), or run `%pip install -U torch` in a cell "
        "of your own, restart the session, and run all cells"
    )
if torch.cuda.is_available():
    print(
        "The lesson runs on the GPU here. With its default sizes it takes less than 4 GB, as "
        "measured on a CPU; a T4 has 15. "
        "Saved times are a CPU's, and so is what the text says of page faults: on a GPU times "
        "differ, and so do last digits."
    )
elif not torch.backends.mps.is_available():
    print(
        "There is no GPU here, and the lesson runs without one, more slowly: "
        "for a GPU choose Runtime > Change runtime type > T4 GPU."
    )"""
BESIDE = "run all cells from the top, those under the heading Helpers write it"
LINKS = re.compile(
    r"(<!-- make colab REPO=owner/name writes the links -->\n).*?(<!-- end -->)", re.S
)


def standalone(lesson: Path, repo: str | None) -> NotebookNode:
    """Derive from a lesson a notebook that needs nothing but torch and what Colab has.

    Args:
        lesson: The notebook.
        repo: `owner/name` of the repository on GitHub that links lead to: to copies on its branch
            `colab`, to sources on main; None for no such links.

    Raises:
        ValueError: A cell is not Python; the parameters cell will not do.
    """
    notebook = copies.derive(lesson, BESIDE)
    copies.relink_headings(notebook, "#scrollTo=")
    copies.relink(notebook, OPEN.format(repo=repo, branch=BRANCH, name="") if repo else None)
    with copies.located(f"{lesson.name}, "):
        needed = imports.reached(notebook)
    for cell in files.code_cells(notebook):
        if "parameters" in files.tags(cell):
            cell.source, cell.metadata["cellView"] = form(lesson), "form"
        if "solution" in files.tags(cell):
            cell.metadata["cellView"] = "form"
            cell.source = f"# @title Solution\n{cell.source}"
        cell.execution_count = None
        cell.metadata.pop("output_of", None)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = None
    if repo:
        source = f"https://github.com/{repo}/blob/main/notebooks/{lesson.name}"
        badge = f"[![Open in Colab]({BADGE})]({address(lesson, repo)})"
        notebook.cells[0].source += f"\n\n{badge} [Source on GitHub]({source})"
    setup = next(n for n, cell in enumerate(notebook.cells) if "parameters" in files.tags(cell)) + 1
    ready = READY.format(lowest=LOWEST_TORCH, wanted=".".join(map(str, LOWEST_TORCH)))
    notebook.cells.insert(setup, _folded("colab-ready", ready))
    notebook.cells[1:1] = _section(needed)
    for cell in notebook.cells:
        cell.metadata["id"] = cell.id  # by which Colab knows a cell
    notebook.metadata.update(copy.deepcopy(METADATA))
    return notebook


def address(lesson: Path, repo: str) -> str:
    """Return where Colab opens the copy of a lesson that a repository has published."""
    return OPEN.format(repo=repo, branch=BRANCH, name=lesson.name)


def link_readme(readme: Path, repo: str) -> None:
    """Write into README.md, where it has a place for them, the links that open lessons in Colab.

    Raises:
        ValueError: It cannot be written.
    """
    links = ", ".join(f"[{each.stem[:2]}]({address(each, repo)})" for each in files.find())
    text = readme.read_text(encoding="utf-8")
    with drafts.replaced_file(readme) as draft:
        draft.write_text(LINKS.sub(rf"\1Open in Colab: {links}.\n\2", text), encoding="utf-8")


def form(lesson: Path) -> str:
    """Write the parameters of a lesson as a form: fields to fill in, with their meaning above.

    Raises:
        ValueError: As in `parameters.declared`.
    """
    lines = ["# @title Parameters"]
    for name, (default, meaning) in parameters.declared(lesson).items():
        kind = '{type: "integer"}' if isinstance(default, int) else '{type: "string"}'
        kind = CHOICES.get(name, kind) + (" {allow-input: true}" if name == "device" else "")
        value = json.dumps(default, ensure_ascii=False)  # a form wants double quotes
        lines += [f"# @markdown `{name}`: {meaning}", f"{name} = {value}  # @param {kind}"]
    return "\n".join(lines)


def check_repo(repo: str) -> None:
    """Raise ValueError unless a text is a repository's name, owner/name."""
    if not re.fullmatch(
        r"[A-Za-z0-9][A-Za-z0-9-]*/(?!\.{1,2}$)(?!.*\.git$)[\w.-]+", repo, re.ASCII
    ):
        raise ValueError(f"REPO must be owner/name, such as ada/gradients, got {repo!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, 1 when the folder cannot be written, or 2 when a lesson is unknown or
        will not do, or the repository's name is none.
    """
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.colab", description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers or names; none means all")
    parser.add_argument("--repo", help="owner/name that links lead to; none means no such links")
    asked = parser.parse_args(arguments)
    try:
        if asked.repo is not None:
            check_repo(asked.repo)
        derived = {each: standalone(each, asked.repo) for each in files.choose(asked.lessons)}
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        with drafts.replaced(FOLDER) as draft:
            for lesson, notebook in derived.items():
                copies.save(notebook, draft / lesson.name)
        if asked.repo is not None and README.exists():
            link_readme(README, asked.repo)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"for Colab, in {FOLDER}: {', '.join(each.stem for each in derived)}")
    return 0


def _section(needed: Sequence[Path]) -> list[NotebookNode]:
    """Make the folded section that writes the modules of `helpers`, up to the next heading."""
    folders = sorted({path.parent.as_posix() for path in needed})
    sources = {path: (imports.ROOT / path).read_text("utf-8") for path in needed}
    sources |= copies.entries(needed)
    return [
        new_markdown_cell(f"## {HEADING}", id=SECTION, metadata={COLLAPSED: True}),
        new_markdown_cell(ABOUT, id="colab-about"),  # folded, too
        _folded("colab-folders", FOLDERS.format(folders=json.dumps(folders))),
        *(_file(path, source) for path, source in sources.items()),
        new_markdown_cell("## Parameters", id="colab-parameters"),
    ]


def _file(path: Path, source: str) -> NotebookNode:
    name = path.as_posix()
    text = f"%%writefile {name}\n# @title {name}\n{source.rstrip()}"
    return _folded("-".join(path.with_suffix("").parts), text)


def _folded(identity: str, source: str) -> NotebookNode:
    return new_code_cell(source, id=identity, metadata=copy.deepcopy(FOLDED))


if __name__ == "__main__":
    end_cleanly_on_signals()
    sys.exit(main())
