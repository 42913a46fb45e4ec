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
from tests.support.samples import DOOR, LESSONS, ROOT, browse, good_lesson, save

# Of the theme and of MyST, both pinned, which call what Sphinx 11 will not have.
pytestmark = pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")
ALL = [DOOR, *LESSONS]
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
    """Read the index and the page of each lesson, by name."""
    found = {}
    for name in ["index"] + [lesson.stem for lesson in ALL]:
        text = (written / f"{name}.html").read_text("utf-8")
        found[name] = BeautifulSoup(text, "html.parser")
    return found


@pytest.mark.whole
def test_links_lead_somewhere_and_nothing_is_fetched_from_outside(book, written):
    for name, soup in book.items():
        assert len(soup.article.find_all("h1")) == 1
        for image in soup.select("main img:not(.thumbnail)"):
            assert image.get("alt"), image
        for link in soup.select(".bd-article a[href], .bd-sidebar a[href]"):
            page, _, anchor = link["href"].partition("#")
            if page.startswith("http"):
                continue
            if page:
                assert (written / page).exists(), link
            if anchor:
                there = book[page.removesuffix(".html") or name]
                assert there.find(id=anchor), link
        for each in soup.select("img, script, link, iframe, source"):
            address = each.get("src") or each.get("href") or ""
            assert not re.match(r"(https?:)?//", address), each
            if each.name == "img":
                assert (written / address).exists(), each
        assert "mathjax" not in str(soup.head).lower()
    for path in written.rglob("*.css"):
        assert not OUTSIDE.search(path.read_text("utf-8")), path


@pytest.mark.whole
def test_index_has_each_lesson_with_its_doors_and_lessons_their_copies_for_colab(book, written):
    entries = book["index"].select("article section section section")
    groups = book["index"].select("article section section:has(> section) > h2")
    assert [group.text.split()[0] for group in groups] == ["Start", "Use", "Look"]
    opened = "https://colab.research.google.com/github/ada/gradients/blob/colab/"
    in_order = sorted(entries, key=lambda entry: entry.h3.a["href"])
    for lesson, entry in zip(ALL, in_order, strict=True):
        page = f"{lesson.stem}.html"
        assert entry.h3.a["href"] == page
        has_figure = any(cell.metadata.get("alt") for cell in files.read(lesson).cells)
        assert bool(entry.select_one("img.thumbnail")) == has_figure
        doors = [link["href"] for link in entry.find_all("p")[1].find_all("a")]
        assert doors[:2] == [page, opened + lesson.name]
        _, colab_copy, file = doors
        assert files.read(written / file) == colab.standalone(lesson, "ada/gradients")
        links = [link["href"] for link in book[lesson.stem].select("a[href]")]
        assert colab_copy in links
        assert file in links


@pytest.mark.whole
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_formulas_and_texts_of_figures_are_those_of_the_source(lesson, book):
    notebook, article = files.read(lesson), book[lesson.stem].article
    alternatives, texts = set(), []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            texts.append(cell.source)
        elif "alt" in cell.metadata:
            alternatives.add(cell.metadata.alt)
        for output in cell.get("outputs", []):
            texts.append(output.get("data", {}).get("text/markdown", ""))
    assert {image["alt"] for image in article.select(".cell_output img")} == alternatives
    formulas = 0
    for text in texts:
        without_code = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
        formulas += len(re.findall(r"\$\$[^$]+\$\$|\$[^$]+\$", without_code))
    assert len(article.find_all("math")) == formulas


@pytest.mark.whole
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_folds_are_those_of_the_source(lesson, book):
    notebook, article = files.read(lesson), book[lesson.stem].article
    predicted = files.read(lesson)
    predictions.fold(predicted)
    answers = [cell for cell in predicted.cells if "answer" in cell.metadata]
    # Code that is folded as well as its answer has a fold of the answer's name.
    with_answer = [cell.id for cell in answers]
    hints = 0
    hidden = {"Solution": [], "Set-up": [], "Code": []}  # by the first word of a fold
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            hints += cell.source.count("<details><summary>Hint ")
        elif cell.source.startswith(form.SETUP):
            hidden["Set-up"].append(cell.source)
        elif "solution" in files.tags(cell):
            hidden["Solution"].append(cell.source)
        elif "hide-input" in files.tags(cell) and cell.id not in with_answer:
            hidden["Code"].append(cell.source)
    folds = {}
    for fold in article.find_all("details"):
        assert not fold.has_attr("open")
        folds.setdefault(fold.summary.text.split()[0], []).append(fold)
    for name, sources in hidden.items():
        assert [fold.pre.text.strip() for fold in folds.get(name, [])] == sources
    found = folds.get("Hint", [])
    assert len(found) == hints
    assert hints or not hidden["Solution"], "an exercise has hints"
    for hint in found:
        prose = [each for each in hint.strings if not each.find_parent("code")]
        assert not re.search(r"[`$]|\*\*", "".join(prose)), "Markdown that was not converted"
    shown = folds.get("Show", [])
    code = [fold.pre.text.strip() for fold in shown if fold.select_one(".cell_input")]
    assert code == [cell.source for cell in answers if "hide-input" in files.tags(cell)]
    results = [fold for fold in shown if not fold.select_one(".cell_input")]
    for fold, cell in zip(results, answers, strict=True):
        assert fold.parent.select_one(".cell_input").text.strip() == cell.source
        assert fold.select_one(".cell_output > *")
        assert not fold.find("strong", string=re.compile("Predict"))
        assert re.match(r"[\w ]*", cell.metadata.answer)[0] in fold.text


def folded(*cells) -> list[tuple[str | None, str]]:
    """Return what cells become: answer and source; `>` begins a text, `!` tagged code."""
    notebook = new_notebook()
    for each in cells:
        if each.startswith(">"):
            notebook.cells.append(new_markdown_cell(each[1:]))
            continue
        cell = new_code_cell(each)
        if each.startswith("!"):
            cell.metadata["tags"] = ["hide-output"]
        if each != "silent":
            cell.outputs.append(new_output("stream", text="7"))
        notebook.cells.append(cell)
    predictions.fold(notebook)
    return [(cell.metadata.get("answer"), cell.source) for cell in notebook.cells]


def test_answer_takes_every_output_and_ends_where_something_else_begins():
    for answer, rest in (
        ("Seven.\n\nAs it had to be.", ""),
        ("Seven.\n\n```\nrun\n\n# twice\n```", ""),
        ("Seven.\n\n", "## 2. More\n\nText."),
        ("", "**7** it is.\n\nSo."),
        ("Seven.\n\n", "And then? **Predict** it."),
        ("Seven. And then? ", "**Predict** it."),
    ):
        expected = [(answer, "!code")]
        if rest:
            expected.append((None, rest))
        assert folded("!code", f">{answer}{rest}") == expected
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
    old.write_text("old", "utf-8")
    with pytest.raises(ValueError, match="was not written"):
        pages.build()
    assert re.search(r"01_a\.ipynb.*\\nonsense", capfd.readouterr().err)
    assert old.read_text("utf-8") == "old"


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
        page.write_text(page.read_text("utf-8").replace("</body>", f"{probe}</body>"), "utf-8")
        phones += f'<iframe src="{page.name}" style="width: {width}px; height: 800px; border: 0">'
        phones += "</iframe>"
    (copy / "phones.html").write_text(phones, "utf-8")
    results = browse(copy / "phones.html", width + 100)
    assert results.keys() == book.keys()
    for name, found in results.items():
        folds = len(book[name].select(".bd-article details"))
        # All folds are open and the page is light while it is printed.
        assert found.pop("print") == [[0, "dark"], [folds, "light"], [0, "dark"]], name
        assert found.pop("inner") == width, name
        assert found.pop("open") == folds, name
        assert found.pop("fields") == (1 if name == "06b_reference" else 0), name
        exercises = book[name].find_all("strong", string=re.compile(r"^Exercise \d+$"))
        assert found.pop("done") == len(exercises), name
        assert not any(found.values()), (name, found)
