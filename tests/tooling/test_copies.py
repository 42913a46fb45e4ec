"""What editions of lessons share: their links, and what a copy says."""

import pytest
from nbformat.v4 import new_markdown_cell, new_output

from helpers.tooling import colab, student
from helpers.tooling.lesson import copies, form
from tests.tooling.samples import LESSONS, cell, code, good_lesson, lesson, save


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


def test_links_stay_where_the_lesson_is_there():
    notebook = lesson(new_markdown_cell("[A](01_a.ipynb#x), [B](02_b.ipynb)", id="links"))
    copies.relink(notebook, None, there=["01_a.ipynb"])
    assert cell(notebook, "links").source == "[A](01_a.ipynb#x), B"
    copies.relink(notebook, "https://example.org/")
    assert cell(notebook, "links").source == "[A](https://example.org/01_a.ipynb), B"


@pytest.mark.parametrize("beside", [colab.BESIDE, student.BESIDE])
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_copy_says_what_it_is_and_how_to_find_its_helpers(path, beside):
    copy = copies.derive(path, beside)
    assert copy.cells[0].source.count(copies.COPY) == 1
    text = "\n".join(each.source for each in copy.cells)
    assert copies.LOST in form.SETUP
    assert copies.LOST not in text
    assert f'raise FileNotFoundError("no folder `helpers` here or above: {beside}")' in text


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("command", ["colab", "student"])
def test_lesson_that_will_not_do_is_named_in_one_sentence(command, capsys, tmp_path):
    notebook = good_lesson()
    notebook.cells.append(code("here", "x = = 1"))
    path = save(notebook, "01_a")
    if command == "colab":
        assert colab.main([]) == 2
        shown = capsys.readouterr().err
    else:
        with pytest.raises(ValueError, match="not") as raised:
            student.build([path], tmp_path / "student")
        shown = f"{raised.value}\n"
    assert shown == "01_a.ipynb, cell 19 (here) is not Python: invalid syntax\n"
    assert not (tmp_path / "build").exists()
    assert not (tmp_path / "student").exists()
