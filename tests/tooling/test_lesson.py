"""What the tools share: files replaced at once, modules that a lesson reaches, editions, folds."""

import contextlib
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook, new_output

from helpers.tooling import colab, student
from helpers.tooling.lesson import copies, drafts, imports, predictions
from tests.support.samples import LESSONS, cell, code, lesson

SOURCES = {
    "__init__.py": "",
    "text.py": "def shape(): ...",
    "limits/__init__.py": "def cases():\n    from helpers import text",
    "limits/entries.toml": "",
    "limits/slow.py": "import torch, helpersome",
}
REACHED = {
    "def load():\n    from helpers import text": "__init__.py text.py",
    "import helpers.limits": "__init__.py limits/__init__.py limits/entries.toml text.py",
    "from helpers.limits import slow": " ".join(sorted(SOURCES)),
    "import torch, helpersome": "",
}


def test_imports_are_followed(tmp_path, monkeypatch):
    for name, text in SOURCES.items():
        path = tmp_path / "helpers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    monkeypatch.setattr(imports, "ROOT", tmp_path)
    monkeypatch.setattr(imports, "PACKAGE", tmp_path / "helpers")
    for source, names in REACHED.items():
        expected = [Path("helpers", name) for name in names.split()]
        assert imports.reached(lesson(code("here", source))) == expected


@pytest.mark.parametrize("error", [None, KeyError("no"), SystemExit(143)])
def test_a_file_or_a_folder_is_replaced_unless_it_fails(error, tmp_path):
    folder = tmp_path / "build" / "edition"
    folder.mkdir(parents=True)
    (folder / "old").touch()
    file = tmp_path / "file"
    file.write_text("old", "utf-8")
    ends = contextlib.suppress(KeyError, SystemExit)
    with ends, drafts.replaced(folder) as folder_draft, drafts.replaced(file) as file_draft:
        folder_draft.mkdir()
        (folder_draft / "new").touch()
        file_draft.write_text("new", "utf-8")
        assert file.read_text("utf-8") == "old"
        if error:
            raise error
    state = "old" if error else "new"
    assert file.read_text("utf-8") == state
    # And nothing else is left behind.
    assert sorted(tmp_path.rglob("*")) == [folder.parent, folder, folder / state, file]


def test_an_interrupt_while_a_folder_takes_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    folder, replace = tmp_path / "edition", Path.replace
    folder.mkdir()
    (folder / "old").touch()

    def interrupted(path, target):
        if (path / "new").exists():
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with contextlib.suppress(KeyboardInterrupt), drafts.replaced(folder) as draft:
        draft.mkdir()
        (draft / "new").touch()
    assert [*tmp_path.rglob("*")] == [folder, folder / "old"]


def test_links_to_headings_lead_to_cells():
    table = new_output("display_data", {"text/markdown": "[first](#first-part) [none](#nowhere)"})
    notebook = lesson(
        new_markdown_cell("See [there](#first-part).", id="see"),
        code("index", "show_index()"),
        new_markdown_cell("Text\n\n## first part\n\nMore", id="here"),
    )
    cell(notebook, "index").outputs = [table]
    copies.relink_headings(notebook, "#scrollTo=")
    assert cell(notebook, "see").source == "See [there](#scrollTo=here)."
    assert cell(notebook, "index").cell_type == "markdown"
    assert cell(notebook, "index").source == "[first](#scrollTo=here) [none](#nowhere)"


@pytest.mark.parametrize("beside", [colab.BESIDE, student.BESIDE])
def test_copy_says_how_to_find_its_own_helpers(beside):
    for path in LESSONS:
        text = "\n".join(each.source for each in copies.derive(path, beside).cells)
        assert beside in text
        assert copies.LOST not in text


def folded(*cells: NotebookNode) -> list[tuple[str | None, str]]:
    """Return what cells become: what each has as its answer, and the source."""
    notebook = new_notebook(cells=list(cells))
    predictions.fold(notebook)
    return [(each.metadata.get("answer"), each.source) for each in notebook.cells]


@pytest.mark.parametrize(
    ("answer", "rest"),
    [
        ("Seven.\n\nAs it had to be.", ""),
        ("Seven.\n\n```\nrun\n\n# twice\n```", ""),
        ("Seven.\n\n", "## 2. More\n\nText."),
        ("", "**7** it is.\n\nSo."),
        ("Seven.\n\n", "And then? **Predict** it."),
        ("Seven. And then? ", "**Predict** it."),
    ],
)
def test_an_answer_ends_where_something_else_begins(answer, rest):
    run = code("run", "run()", "hide-output", printed="7")
    expected = [(answer, "run()")]
    if rest:
        expected.append((None, rest))
    assert folded(run, new_markdown_cell(answer + rest)) == expected


def test_a_prediction_is_answered_by_all_outputs_up_to_the_next_text():
    question = new_markdown_cell("**Predict** it.")
    said = new_markdown_cell("Seven.")
    silent = code("silent", "silent")
    first = code("first", "first", printed="7")
    last = code("last", "last", printed="7")
    more = new_markdown_cell("More.")
    later = code("later", "later", printed="7")
    kept = [(None, question.source), (None, "silent")]
    assert folded(question, silent, said) == [*kept, (None, "Seven.")]
    answered = [("", "first"), ("Seven.", "last"), (None, "More."), (None, "later")]
    assert folded(question, silent, first, last, said, more, later) == kept + answered
