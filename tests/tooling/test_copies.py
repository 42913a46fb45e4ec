"""What editions of lessons share: their links, and what a copy says."""

import pytest
from nbformat.v4 import new_markdown_cell, new_output

from helpers.tooling import colab, student
from helpers.tooling.lesson import copies
from tests.tooling.samples import LESSONS, cell, code, lesson


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
def test_copy_says_what_it_is_and_how_to_find_its_helpers(beside):
    for path in LESSONS:
        copy = copies.derive(path, beside)
        assert copy.cells[0].source.count(copies.COPY) == 1
        text = "\n".join(each.source for each in copy.cells)
        assert copies.LOST not in text
        assert f'raise FileNotFoundError("no folder `helpers` here or above: {beside}")' in text
