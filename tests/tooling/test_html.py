"""The reading edition: complete, linked, without a network, and the same folds as its source."""

import json
import re
import shutil
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.tooling import colab
from helpers.tooling.lesson import files, form, predictions
from helpers.tooling.pages import __main__ as pages
from tests.tooling.samples import DOOR, LESSONS, ROOT, browse, good_lesson, save

# Of the theme and of MyST, both pinned, which call what Sphinx 11 will not have.
pytestmark = pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")
OUTSIDE = re.compile(r"""(url\(|@import)\s*["']?(https?:)?//""")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Write the pages, which raises where Sphinx warns of something."""
    folder = tmp_path_factory.mktemp("edition") / "html"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("REPO", "ada/gradients")
        pages.build(folder)
    return folder


@pytest.fixture(scope="module")
def book(written) -> dict[str, BeautifulSoup]:
    names = ["index", *(lesson.stem for lesson in (DOOR, *LESSONS))]
    texts = {name: (written / f"{name}.html").read_text() for name in names}
    return {name: BeautifulSoup(text, "html.parser") for name, text in texts.items()}


@pytest.mark.whole
def test_links_lead_somewhere_and_nothing_is_fetched_from_outside(book, written):
    for name, soup in book.items():
        assert len(soup.article.find_all("h1")) == 1
        assert all(image.get("alt") for image in soup.select("main img:not(.thumbnail)"))
        for link in soup.select(".bd-article a[href], .bd-sidebar a[href]"):
            page, _, anchor = link["href"].partition("#")
            if not page.startswith("http"):
                assert not page or (written / page).exists(), link
                there = book[page.removesuffix(".html") or name] if anchor else soup
                assert not anchor or there.find(id=anchor), link
        for each in soup.select("img, script, link, iframe, source"):
            address = each.get("src") or each.get("href") or ""
            assert not re.match(r"(https?:)?//", address), each
            assert each.name != "img" or (written / address).exists(), each
        assert "mathjax" not in str(soup.head).lower()
    assert [path for path in written.rglob("*.css") if OUTSIDE.search(path.read_text())] == []


@pytest.mark.whole
def test_index_has_each_lesson_with_its_doors_and_lessons_their_copies_for_colab(book, written):
    entries = book["index"].select("article section section section")
    groups = book["index"].select("article section section:has(> section) > h2")
    assert [group.text.split()[0] for group in groups] == ["Start", "Use", "Look"]
    opened = "https://colab.research.google.com/github/ada/gradients/blob/colab/"
    in_order = sorted(entries, key=lambda entry: entry.h3.a["href"])
    for lesson, each in zip((DOOR, *LESSONS), in_order, strict=True):
        assert each.h3.a["href"] == f"{lesson.stem}.html"
        drawn = any(cell.metadata.get("alt") for cell in files.read(lesson).cells)
        assert bool(each.select_one("img.thumbnail")) == drawn
        read, colab_copy, file = [link["href"] for link in each.find_all("p")[1].find_all("a")]
        assert (read, colab_copy) == (f"{lesson.stem}.html", opened + lesson.name)
        assert files.read(written / file) == colab.standalone(lesson, "ada/gradients")
        assert {colab_copy, file} <= {link["href"] for link in book[lesson.stem].select("a[href]")}


@pytest.mark.whole
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_formulas_folds_and_texts_of_figures_are_those_of_the_source(lesson, book):
    notebook, article = files.read(lesson), book[lesson.stem].article
    cells = files.code_cells(notebook)
    figures = {image["alt"] for image in article.select(".cell_output img")}
    assert figures == {cell.metadata.alt for cell in cells if "alt" in cell.metadata}
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    hints = "".join(texts).count("<details><summary>Hint ")
    outputs = [output for cell in cells for output in cell.outputs]
    texts += [output.get("data", {}).get("text/markdown", "") for output in outputs]
    bare = [re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL) for text in texts]
    formulas = sum(len(re.findall(r"\$\$[^$]+\$\$|\$[^$]+\$", text)) for text in bare)
    assert len(article.find_all("math")) == formulas
    hidden = {"Solution": [], "Set-up": [], "Code": []}
    for cell in cells:
        tags = files.tags(cell)
        if cell.source.startswith(form.SETUP):
            hidden["Set-up"].append(cell.source)
        elif {"solution", "hide-input"} & {*tags}:
            hidden["Solution" if "solution" in tags else "Code"].append(cell.source)
    folds = {}
    for fold in article.find_all("details"):
        assert not fold.has_attr("open")
        folds.setdefault(fold.summary.text.split()[0], []).append(fold)
    for name, sources in hidden.items():
        assert [fold.pre.text.strip() for fold in folds.get(name, [])] == sources
    assert len(folds["Hint"]) == hints > 0
    for hint in folds["Hint"]:
        prose = [each for each in hint.strings if not each.find_parent("code")]
        assert not re.search(r"[`$]|\*\*", "".join(prose))
    predictions.fold(notebook)
    answers = [cell for cell in notebook.cells if "answer" in cell.metadata]
    for fold, cell in zip(folds["Show"], answers, strict=True):
        assert fold.parent.select_one(".cell_input").text.strip() == cell.source
        assert fold.select_one(".cell_output > *")
        assert not fold.find("strong", string=re.compile("Predict"))
        assert re.match(r"[\w ]*", cell.metadata.answer)[0] in fold.text


def folded(*cells) -> list[tuple[str | None, str]]:
    """Return what cells become: answer and source; `>` begins a text, `!` tagged code."""
    shown, made = new_output("stream", text="7"), []
    for each in cells:
        if each.startswith(">"):
            made.append(new_markdown_cell(each[1:]))
        else:
            tags = {"tags": ["hide-output"]} if each.startswith("!") else {}
            made.append(new_code_cell(each, outputs=[shown] * (each != "silent"), metadata=tags))
    predictions.fold(book := new_notebook(cells=made))
    return [(cell.metadata.get("answer"), cell.source) for cell in book.cells]


def test_answer_takes_every_output_and_ends_where_something_else_begins():
    for answer, rest in (
        ("Seven.\n\nAs it had to be.", ""),
        ("Seven.\n\n```\nrun\n\n# twice\n```", ""),
        ("Seven.\n\n", "## 2. More\n\nText."),
        ("", "**7** it is.\n\nSo."),
        ("Seven.\n\n", "And then? **Predict** it."),
        ("Seven. And then? ", "**Predict** it."),
    ):
        shown = folded("!code", f">{answer}{rest}")
        assert shown == [(answer, "!code"), *([(None, rest)] if rest else [])]
    question, *shown = folded(">**Predict** it.", "silent", "first", "last", ">Seven.", "more")
    assert question == (None, "**Predict** it.")
    assert shown == [(None, "silent"), ("", "first"), ("Seven.", "last"), (None, "more")]
    shown = folded(">**Predict** it.", "silent", ">Seven.")
    assert shown[1:] == [(None, "silent"), (None, "Seven.")]


def test_formula_that_cannot_be_converted_is_named_and_leaves_the_old_pages(desk, capfd):
    notebook = good_lesson()
    first = "# A lesson\n\nA promise.\n\n*Reading: an hour. Running: a day.*\n\n$\\nonsense x$"
    notebook.cells[0].source = first
    save(notebook, "01_a")
    Path("README.md").touch()
    old = Path("build/html/index.html")
    old.parent.mkdir(parents=True)
    old.write_text("old")
    with pytest.raises(ValueError, match="was not written"):
        pages.build()
    assert re.search(r"01_a\.ipynb.*\\nonsense", capfd.readouterr().err)
    assert old.read_text() == "old"


# Each list names what is wrong, also in what was folded. The theme needs some time for its tables.
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const all = (selector) => [...document.querySelectorAll(`.bd-article ${selector}`)];
  const texts = (elements) => elements.map((each) => each.textContent);
  const box = (each) => each.getBoundingClientRect();
  const state = () => [all("details[open]").length, document.documentElement.dataset.theme];
  document.documentElement.dataset.theme = "dark";
  const print = [state()];
  for (const event of ["beforeprint", "afterprint"]) {
    dispatchEvent(new Event(event));
    print.push(state());
  }
  for (const button of all(".unfold")) button.click();
  const kept = (box) => {
    const marks = localStorage.length;
    box.click();
    return localStorage.length == marks + 1;
  };
  const tight = (pair) => {
    const [sign, ...limits] = [...pair.children].map(box);
    return limits.some((limit) => limit.top < sign.bottom - 1 && limit.bottom > sign.top + 1);
  };
  const lines = (text, start, end) => {
    const range = document.createRange();
    range.setStart(text, start);
    range.setEnd(text, end);
    return range.getClientRects().length;
  };
  const broken = (cell) => {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), words = [];
    for (let text; (text = walk.nextNode()); )
      for (const word of text.data.matchAll(/[A-Za-z]+/g))
        if (lines(text, word.index, word.index + word[0].length) > 1) words.push(word[0]);
    return words;
  };
  const squashed = ({ width, height, naturalWidth, naturalHeight }) =>
    Math.abs((width / height) * (naturalHeight / naturalWidth) - 1) > 0.03;
  const lost = (entry) => {
    const field = entry.parentElement.previousElementSibling.querySelector("input");
    const seen = (said) => {
      field.value = said;
      field.dispatchEvent(new Event("input"));
      return [...entry.parentElement.children].filter((each) => box(each).width);
    };
    const codes = texts([...entry.querySelectorAll("code")]);
    const said = codes.filter((each) => each.includes(": ..."));
    const found = [entry.querySelector("a").textContent, ...said].map((each) =>
      seen(each.replaceAll("...", " 0x7f ")));
    return found.some((few) => !few.includes(entry) || few.length > 12) || !seen("").length;
  };
  parent.postMessage([NAME, {
    inner: innerWidth,
    wide: document.documentElement.scrollWidth > innerWidth,
    uncopied: all(":not(.highlight-myst-ansi) > .highlight > pre:not(:has(+ .copybtn))").length,
    undrawn: texts(all("math").filter((each) => !box(each).width)),
    tight: texts(all('math[display="block"] :is(munder, mover, munderover)').filter(tight)),
    broken: [...all("td"), ...all("th")].flatMap(broken),
    squashed: all(".cell_output img").filter(squashed).map((each) => each.alt),
    lost: texts(all(".filter + ul > li").filter(lost)),
    fields: all(".filter").length,
    print: print,
    open: all("details[open]").length,
    done: all(".done input").filter(kept).length,
  }], "*");
}, 1000));</script>"""
# A window of a browser cannot be as narrow as a phone; a frame in it can.
PHONE = """<!DOCTYPE html><script>
const found = {};
addEventListener("message", (event) => {
  found[event.data[0]] = event.data[1];
  document.documentElement.dataset.found = JSON.stringify(found);
});</script>"""


@pytest.mark.whole
@pytest.mark.parametrize("width", [360, 1280])
def test_pages_can_be_read_at_this_width(width, book, written, tmp_path):
    copy = Path(shutil.copytree(written, tmp_path / "copy"))
    phones = PHONE
    for name in book:
        page = copy / f"{name}.html"
        probe = PROBE.replace("NAME", json.dumps(name))
        page.write_text(page.read_text().replace("</body>", f"{probe}</body>"))
        phones += f'<iframe src="{page.name}" style="width: {width}px; height: 800px; border: 0">'
        phones += "</iframe>"
    (copy / "phones.html").write_text(phones)
    results = browse(copy / "phones.html", width + 100)
    assert results.keys() == book.keys()
    for name, found in results.items():
        folds = len(book[name].select(".bd-article details"))
        assert found.pop("print") == [[0, "dark"], [folds, "light"], [0, "dark"]], name
        assert (found.pop("inner"), found.pop("open")) == (width, folds), name
        assert found.pop("fields") == (name == "06_limits")
        exercises = book[name].find_all("strong", string=re.compile(r"^Exercise \d+$"))
        assert found.pop("done") == len(exercises), name
        assert not any(found.values()), (name, found)
