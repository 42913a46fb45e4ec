"""The reading edition: complete, linked, self-contained, and the same formulas as its source."""

import base64
import io
import json
import re
import shutil
import subprocess
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from helpers.tooling.lesson import files
from helpers.tooling.pages import __main__ as pages
from helpers.tooling.pages import predictions, prose
from tests.tooling.samples import LESSONS, ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("edition") / "html"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        pages.build(folder)
        pages.build(folder)  # over the one that is there
    assert [path.name for path in folder.parent.iterdir()] == ["html"]
    assert {path.name for path in folder.iterdir()} == {
        "index.html",
        "style.css",
        "script.js",
        *(f"{lesson.stem[:2]}.html" for lesson in LESSONS),
    }
    assert not re.search(r"url\(|@import", (folder / "style.css").read_text())
    return folder


@pytest.fixture(scope="module")
def edition(written) -> dict[str, BeautifulSoup]:
    return {
        path.name: BeautifulSoup(path.read_text(), "html.parser") for path in written.glob("*.html")
    }


def test_links_and_anchors_lead_somewhere(edition):
    anchors = {
        name: [each["id"] for each in soup.find_all(id=True)] for name, soup in edition.items()
    }
    for name, soup in edition.items():
        assert len(anchors[name]) == len(set(anchors[name]))
        for link in soup.find_all("a", href=True):
            page, _, anchor = link["href"].partition("#")
            if not page.startswith("http"):
                assert (page or name) in edition, link
                assert not anchor or anchor in anchors[page or name], link


def test_nothing_is_fetched_from_outside(edition):
    for soup in edition.values():
        for each in soup.find_all(["img", "script", "link", "iframe", "source"]):
            address = each.get("src") or each.get("href")
            assert address in ("style.css", "script.js") or address.startswith("data:")


def test_pages_say_what_they_are(edition):
    for soup in edition.values():
        assert soup.html["lang"] == "en"
        assert soup.title.text
        assert soup.find("meta", attrs={"name": "viewport"})
        assert len(soup.find_all("main")) == len(soup.find_all("h1")) == 1
        assert all(image.get("alt") for image in soup.find_all("img"))


def test_pages_say_which_notebook_they_show(edition):
    said = {name: soup.select_one("header .note") for name, soup in edition.items()}
    assert "notebooks/NN_name.ipynb" in edition["index.html"].select_one("h1 + p").text
    assert said.pop("index.html") is None
    names = {page: note.code.text for page, note in said.items()}
    assert names == {f"{path.stem[:2]}.html": f"notebooks/{path.name}" for path in LESSONS}
    assert all("run it there" in note.text for note in said.values())


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_formulas_and_solutions_are_those_of_the_source(lesson, edition):
    notebook = files.read(lesson)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    texts += [
        output.data["text/markdown"]
        for cell in files.code_cells(notebook)
        for output in cell.outputs
        if "text/markdown" in output.get("data", {})
    ]
    bare = [re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL) for text in texts]
    formulas = [each for text in bare for each in re.findall(r"\$\$[^$]+\$\$|\$[^$]+\$", text)]
    soup = edition[f"{lesson.stem[:2]}.html"]
    assert len(soup.find_all("math")) == len(formulas)
    solutions = [cell for cell in notebook.cells if "solution" in files.tags(cell)]
    folded = [each.find("pre").text.strip() for each in soup.select("details.solution")]
    assert folded == [cell.source.strip() for cell in solutions]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_answers_wait_behind_their_predictions(lesson, edition):
    cells, soup = files.read(lesson).cells, edition[f"{lesson.stem[:2]}.html"]
    blocks = {each.get_text().strip(): each for each in soup.select(".code")}
    answers = soup.select("details.answer")
    predicted = [
        cell
        for before, cell in pairwise(cells)
        if "**Predict**" in before.source and cell.get("outputs")
    ]
    assert predicted
    for cell in predicted:
        answer = blocks[cell.source].find_next_sibling()
        assert answer in answers, cell.id
        assert not answer.has_attr("open")
        assert answer.summary.text == "Show what happens"
        assert answer.select_one(".output > *")
    assert not soup.select("details.answer .code")
    assert not any("Predict" in each.text for each in soup.select("details.answer strong"))


PREDICTION = new_markdown_cell("A question. **Predict** it.")
SHOWN = new_output("stream", text="7")


def _folded(*cells) -> list[tuple[str | None, str]]:
    """Return what the cells behind a prediction become: answer and source."""
    book = new_notebook(cells=[PREDICTION, *cells])
    predictions.fold(book)
    return [(cell.metadata.get("answer"), cell.source) for cell in book.cells[1:]]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Seven.\n\nAs it had to be.", "Seven.\n\nAs it had to be."),
        ("Seven.\n\n```\nrun\n\n# twice\n```", "Seven.\n\n```\nrun\n\n# twice\n```"),
        ("Seven.\n\n## 2. More\n\nText.", "Seven.\n\n"),
        ("## 2. More\n\nText.", ""),
        ("**The trap.** Text.", ""),
        ("**7** it is.\n\nSo.", ""),
        ("Seven.\n\nAnd then? **Predict** it.", "Seven.\n\n"),
        ("Seven. And then? **Predict** it.", "Seven. And then? "),
    ],
)
def test_answer_ends_where_something_else_begins(said, answer):
    rest = said[len(answer) :]
    shown = _folded(new_code_cell("code", outputs=[SHOWN]), new_markdown_cell(said))
    assert shown == [(answer, "code"), *([(None, rest)] if rest else [])]


def test_answer_may_take_several_cells():
    first, last = (new_code_cell(name, outputs=[SHOWN]) for name in ("first", "last"))
    cells = _folded(new_code_cell("silent"), first, last, new_markdown_cell("Seven."))
    assert cells == [(None, "silent"), ("", "first"), ("Seven.", "last")]


def test_without_an_output_nothing_is_folded():
    cells = _folded(new_code_cell("silent"), new_markdown_cell("Seven."))
    assert cells == [(None, "silent"), (None, "Seven.")]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_hints_are_folded_and_rendered(lesson, edition):
    source = "".join(cell.source for cell in files.read(lesson).cells)
    hints = edition[f"{lesson.stem[:2]}.html"].select(".prose > details")
    assert len(hints) == source.count("<details><summary>Hint ") > 0
    for hint in hints:
        assert re.fullmatch(r"Hint [12]", hint.summary.text)
        assert not hint.has_attr("open")
        assert hint.find("p", recursive=False)
        prose_alone = [each for each in hint.strings if not each.find_parent("code")]
        assert not re.search(r"[`$]|\*\*", "".join(prose_alone))


def test_drawings_are_told_from_pictures_of_numbers():
    kinds = []
    for picture in (Image.new("RGB", (64, 64), "white"), Image.linear_gradient("L")):
        file = io.BytesIO()
        picture.save(file, format="png")
        kinds.append(pages._kind(base64.b64encode(file.getvalue()).decode()))
    assert kinds == ["drawing", "shades"]


def test_slider_shows_its_last_frame_without_scripts(edition):
    figures = [figure for soup in edition.values() for figure in soup.select("figure:has(input)")]
    assert figures
    for figure in figures:
        *others, last = figure("img")
        assert others
        assert all(image.has_attr("hidden") for image in others)
        assert not last.has_attr("hidden")
        assert figure.output.text == last["alt"]


def test_code_keeps_its_dollars():
    text = prose.Prose().html("`$a$` costs\n\n```\n$b$\n```\n\nand $c$")
    assert "<code>$a$</code>" in text
    assert "$b$" in text
    assert text.count("<math") == 1


def test_long_names_break_between_their_words_only():
    text = prose.Prose().html("`aten::_scaled_dot_product_attention a.b` and `short_name`")
    assert "<code>aten::_<wbr>scaled_<wbr>dot_<wbr>product_<wbr>attention a.b</code>" in text
    assert "<code>short_name</code>" in text


def test_link_to_a_file_that_is_not_there_becomes_text():
    text = prose.Prose().html("[one](../helpers/data.py), [two](03_torch_func.ipynb#4.-Parts)")
    assert text == '<p>one, <a href="03.html#4.-Parts">two</a></p>\n'


def test_formula_that_cannot_be_converted_is_refused():
    with pytest.raises(ValueError, match=r"has \\nonsense, which cannot be converted"):
        prose.formula(r"\nonsense x", "inline")


@pytest.mark.parametrize(
    ("latex", "spaces"),
    [
        (r"-\log p", 1),
        (r"2 \log p", 2),
        (r"\log \frac{-p}{q}", 1),
        (r"\cos^2 x", 1),
        (r"\max_i x_i", 1),
        (r"\log \log x", 2),
        (r"\log(1 + e)", 0),
        (r"\operatorname{diag}(p) - \exp(x)", 0),
        (r"a + b c", 0),
    ],
)
def test_names_in_formulas_stand_apart(latex, spaces):
    assert prose.formula(latex, "inline").count("<mspace") == spaces


def test_bars_of_a_norm_grow_alike():
    bars = BeautifulSoup(prose.formula(r"\lVert g_i\rVert^2", "inline"), "html.parser")("mo")
    assert [(bar.text, bar["form"]) for bar in bars] == [("‖", "prefix"), ("‖", "postfix")]


def test_bars_of_absolute_values_stand_close():
    bars = BeautifulSoup(prose.formula(r"|x|\,|y|", "inline"), "html.parser")("mo")
    assert [(bar.text, bar.get("lspace"), bar.get("rspace")) for bar in bars] == [
        ("|", "0", "0")
    ] * 4


def test_no_lessons_leave_the_edition_as_it_was(desk):
    old = Path("build/html/index.html")
    old.parent.mkdir(parents=True)
    old.write_text("old")
    with pytest.raises(ValueError, match="no lesson"):
        pages.build()
    assert old.read_text() == "old"


# Each list names what is wrong, also in what was folded.
PROBE = """<script>addEventListener("load", () => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  for (const fold of all("details")) fold.open = true;
  const box = (each) => each.getBoundingClientRect();
  const pieces = (node, start, end) => {
    const range = document.createRange();
    range.setStart(node, start);
    range.setEnd(node, end);
    return [...range.getClientRects()];
  };
  const meet = (a, b) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const covers = (button) => {
    const code = button.closest(".code, .highlight").querySelector("pre");
    return pieces(code, 0, code.childNodes.length).some((piece) => meet(box(button), piece));
  };
  const tight = (pair) => {
    const [sign, ...limits] = pair.children;
    return limits.some((limit) => {
      const { paddingTop, paddingBottom } = getComputedStyle(limit);
      const below = box(limit).top + parseFloat(paddingTop) - box(sign).bottom;
      const above = box(sign).top - box(limit).bottom + parseFloat(paddingBottom);
      return Math.max(below, above) < 1;
    });
  };
  const broken = (cell) => {
    const words = [];
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text; (text = texts.nextNode()); )
      for (const word of text.data.matchAll(/[A-Za-z]+/g))
        if (pieces(text, word.index, word.index + word[0].length).length > 1) words.push(word[0]);
    return words;
  };
  const wide = (table) => {
    const { scrollWidth, clientWidth } = table.closest(".wide");
    return scrollWidth > clientWidth;
  };
  const shaded = (table) => {
    const { overflowX, backgroundAttachment } = getComputedStyle(table.closest(".wide"));
    return overflowX == "auto" && backgroundAttachment == "local, local, scroll, scroll";
  };
  const zooms = (picture) => {
    picture.click();
    const dialog = document.querySelector("dialog[open]");
    const large = dialog?.querySelector("img");
    const right = large?.src == picture.src && box(large).width >= picture.naturalWidth;
    dialog?.querySelector("button").click();
    return right && !dialog.open;
  };
  const slides = (slider) => {
    const frames = [...slider.closest("figure").querySelectorAll("img")];
    return frames.every((frame, place) => {
      slider.value = place;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      const seen = frames.filter((each) => box(each).width > 0);
      return seen.length == 1 && seen[0] == frame && slider.nextElementSibling.value == frame.alt;
    });
  };
  const texts = (elements) => elements.map((each) => each.textContent);
  parent.postMessage(JSON.stringify({
    inner: innerWidth,
    fits: document.documentElement.scrollWidth <= innerWidth,
    copies: all(".copy").length,
    covering: texts(all(".copy").filter(covers).map((each) => each.nextSibling)),
    undrawn: texts(all("math").filter((each) => !box(each).width)),
    tight: texts(
      all('math[display="block"] :is(munder, mover, munderover)').filter(tight)),
    broken: all("td, th").flatMap(broken),
    cut: texts(all("table").filter((each) => wide(each) && (innerWidth > 1000 || !shaded(each)))),
    alone: all("main img").filter((each) => !zooms(each)).map((each) => each.alt),
    stuck: all("input[type=range]").filter((each) => !slides(each)).map((each) => each.value),
    framed: texts(all("table").filter((each) => getComputedStyle(each).borderTopWidth != "0px")),
  }), "*");
});</script>"""
# A window of a browser cannot be as narrow as a phone; a frame in it can.
PHONE = """<!DOCTYPE html><script>addEventListener("message", (event) => {
  document.documentElement.dataset.probe = event.data;
});</script><iframe src="PAGE" style="width: WIDTHpx; height: 800px; border: 0"></iframe>"""


@pytest.mark.whole
@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("name", ["index", *(path.stem[:2] for path in LESSONS)])
def test_page_can_be_read_at_this_width(name, width, written, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser: install chromium")
    copy = Path(shutil.copytree(written, tmp_path / "copy"), f"{name}.html")
    copy.write_text(copy.read_text().replace("</body>", f"{PROBE}</body>"))
    phone = copy.with_name("phone.html")
    phone.write_text(PHONE.replace("PAGE", copy.name).replace("WIDTH", str(width)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    window = [f"--window-size={width + 100},900", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [browser, *options, *window, "--dump-dom", phone.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    found = json.loads(unescape(re.search(r'data-probe="([^"]+)"', done.stdout)[1]))
    blocks = BeautifulSoup(copy.read_text(), "html.parser").select("pre:has(> span:empty)")
    assert found.pop("copies") == len(blocks)
    assert found.pop("inner") == width
    assert found.pop("fits")
    assert not any(found.values()), found
