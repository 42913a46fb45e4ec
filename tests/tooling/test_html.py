"""The reading edition: complete, linked, self-contained, and the same formulas as its source."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from helpers.tooling.lesson import files
from helpers.tooling.pages import __main__ as pages
from helpers.tooling.pages import prose
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


# Each list names what is wrong. What is folded has no size, and is not looked at.
PROBE = """<script>addEventListener("load", () => {
  const all = (selector) => [...document.querySelectorAll(selector)]
    .filter((each) => !each.closest("details:not([open])"));
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
    framed: texts(all("table").filter((each) => getComputedStyle(each).borderTopWidth != "0px")),
  }), "*");
});</script>"""
# A window of a browser cannot be as narrow as a phone; a frame in it can.
PHONE = """<!DOCTYPE html><script>addEventListener("message", (event) => {
  document.documentElement.dataset.probe = event.data;
});</script><iframe src="PAGE" style="width: 360px; height: 800px; border: 0"></iframe>"""


@pytest.mark.whole
@pytest.mark.parametrize("name", ["index", *(path.stem[:2] for path in LESSONS)])
def test_page_can_be_read_on_a_phone(name, written, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser: install chromium")
    copy = Path(shutil.copytree(written, tmp_path / "copy"), f"{name}.html")
    copy.write_text(copy.read_text().replace("</body>", f"{PROBE}</body>"))
    phone = copy.with_name("phone.html")
    phone.write_text(PHONE.replace("PAGE", copy.name))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    window = ["--window-size=800,900", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [browser, *options, *window, "--dump-dom", phone.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    found = json.loads(unescape(re.search(r'data-probe="([^"]+)"', done.stdout)[1]))
    blocks = BeautifulSoup(copy.read_text(), "html.parser").select("pre:has(> span:empty)")
    assert found.pop("copies") == sum(not each.find_parent("details") for each in blocks)
    assert found.pop("inner") == 360
    assert found.pop("fits")
    assert not any(found.values()), found
