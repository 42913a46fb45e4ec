"""Copies of lessons for Colab, each of which stands alone: the helpers travel inside.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.colab 3 --repo owner/name`
makes build/colab/ anew with lesson 3, and with all lessons if none is named. A copy installs
nothing.
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from helpers.tooling.lesson import copies, drafts, files, parameters
from helpers.tooling.lesson.execution import end_cleanly_on_signals

FOLDER = Path("build/colab")
LOWEST_TORCH = (2, 6)
METADATA = {"accelerator": "GPU", "colab": {"provenance": [], "gpuType": "T4"}}
CHOICES = {"device": '["auto", "cpu", "cuda", "mps"]', "dataset": '["digits", "random"]'}
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}
START = """\
# @title Is this machine ready?
import sys
from pathlib import Path

import torch

version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if version < {lowest}:
    raise RuntimeError(
        "this lesson needs torch {wanted} or newer, here is " + torch.__version__ + ": choose a "
        "newer runtime (Runtime > Change runtime type), or run `%pip install -U torch` in a cell "
        "of your own, restart the session, and run all cells"
    )
if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
    print(
        "There is no GPU here, and the lesson runs without one, more slowly: "
        "for a GPU choose Runtime > Change runtime type > T4 GPU."
    )
for name in {folders}:
    Path(name).mkdir(parents=True, exist_ok=True)
for name in [name for name in sys.modules if name.partition(".")[0] == "helpers"]:
    del sys.modules[name]  # so that a helper that was edited is imported anew"""
ABOUT = """\
The folded cells below write the helper modules that this lesson imports into the folder \
`helpers`. Unfold one to read it. After a change to one, run all cells again from the top."""
BESIDE = "run all cells from the top, the folded ones write it"


def standalone(lesson: Path, repo: str | None) -> NotebookNode:
    """Derive from a lesson a notebook that needs nothing but torch and what Colab has.

    Args:
        lesson: The notebook.
        repo: `owner/name` of the repository on GitHub that links lead to, on its branch main;
            None for no such links.

    Raises:
        ValueError: A cell is not Python, or imports what is not there; the parameters cell will
            not do.
    """
    notebook = copies.derive_copy(lesson, BESIDE)
    with copies.located(f"{lesson.name}, "):
        modules = copies.needed(notebook)
    for cell in notebook.cells:
        if "parameters" in files.tags(cell):
            with copies.located(f"{lesson.name}, {files.place(notebook, cell)}: "):
                cell.source, cell.metadata["cellView"] = form(cell), "form"
        if "solution" in files.tags(cell):
            cell.metadata["cellView"] = "form"
            cell.source = f"# @title Solution\n{cell.source}"
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.metadata.pop("output_of", None)
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = None
    blob = f"https://github.com/{repo}/blob/main" if repo else None
    copies.relink(notebook, f"{blob}/notebooks/" if blob else None)
    about = ABOUT
    if blob:
        badge = f"[![{repo}](https://img.shields.io/badge/GitHub-source-blue)]"
        notebook.cells[0].source += f"\n\n{badge}({blob}/notebooks/{lesson.name})"
        about += f" They come from the [repository](https://github.com/{repo}/tree/main/helpers)."
    folders = sorted({(Path("helpers") / path).parent.as_posix() for path in modules})
    wanted = ".".join(map(str, LOWEST_TORCH))
    start = START.format(lowest=LOWEST_TORCH, wanted=wanted, folders=folders)
    notebook.cells[1:1] = [
        new_code_cell(start, id="colab-start", metadata=dict(FOLDED)),
        new_markdown_cell(about, id="colab-helpers"),
        *map(_module, modules),
    ]
    notebook.metadata.update(METADATA)
    return notebook


def form(cell: NotebookNode) -> str:
    """Write the parameters cell as a form: fields to fill in, with their meaning above.

    Raises:
        ValueError: As in `parameters.declared`.
    """
    defaults = parameters.declared(cell)
    given = cell.source.splitlines()
    lines, done = ["# @title Parameters"], 0
    for statement in ast.parse(cell.source).body:
        lines += [line for line in given[done : statement.lineno - 1] if line.strip()]  # comments
        done = statement.end_lineno
        name = statement.target.id
        default = defaults[name]
        behind = given[done - 1][statement.end_col_offset :]
        meaning = behind.partition("#")[2].strip()
        kind = '{type: "integer"}' if isinstance(default, int) else '{type: "string"}'
        if name == "device":
            kind = f"{CHOICES[name]} {{allow-input: true}}"
        elif name in CHOICES:
            kind = CHOICES[name]
        value = json.dumps(default, ensure_ascii=False)  # a form wants double quotes
        lines += [f"# @markdown `{name}`: {meaning}", f"{name} = {value}  # @param {kind}"]
    lines += [line for line in given[done:] if line.strip()]
    return "\n".join(lines)


def check_repo(repo: str) -> None:
    """Refuse what is no repository's name.

    Raises:
        ValueError: It has not the form owner/name.
    """
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
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"for Colab, in {FOLDER}: {', '.join(each.stem for each in derived)}")
    return 0


def _module(path: Path) -> NotebookNode:
    """Make the cell that writes a helper module."""
    source = (copies.HELPERS / path).read_text(encoding="utf-8").rstrip("\n")
    name = f"helpers/{path.as_posix()}"
    identity = "helper-" + re.sub(r"\W+", "-", path.with_suffix("").as_posix().replace("_", "-"))
    text = f"%%writefile {name}\n# @title {name}\n{source}"
    return new_code_cell(text, id=identity.rstrip("-"), metadata=dict(FOLDED))


if __name__ == "__main__":
    end_cleanly_on_signals()
    sys.exit(main())
