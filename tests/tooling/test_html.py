"""The reading edition: complete, linked, without a network, and the same folds as its source."""

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

from helpers.tooling import colab
from helpers.tooling.lesson import files
from helpers.tooling.pages import __main__ as pages
from helpers.tooling.pages import edition, predictions
from tests.tooling.samples import DOOR, LESSONS, ROOT, good_lesson, save

# Of the theme and of MyST, both pinned, which call what Sphinx 11 will not have.
pytestmark = pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


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
def test_links_and_anchors_lead_somewhere(book, written):
    for name, soup in book.items():
        for link in soup.select(".bd-article a[href], .bd-sidebar a[href]"):
            page, _, anchor = link["href"].partition("#")
            if not page.startswith("http"):
                assert not page or (written / page).exists(), link
                there = book[page.removesuffix(".html") or name] if anchor else soup
                assert not anchor or there.find(id=anchor), link


@pytest.mark.whole
def test_nothing_is_fetched_from_outside(book, written):
    for soup in book.values():
        for each in soup.select("img, script, link, iframe, source"):
            address = each.get("src") or each.get("href") or ""
            assert not re.match(r"(https?:)?//", address), each
        assert "mathjax" not in str(soup.head).lower()
    for style in written.rglob("*.css"):
        assert not re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", style.read_text()), style


@pytest.mark.whole
def test_pages_say_what_they_are(book):
    for name, soup in book.items():
        assert soup.html["lang"] == "en"
        assert soup.find("meta", attrs={"name": "viewport"})
        assert len(soup.article.find_all("h1")) == 1
        assert all(image.get("alt") for image in soup.select("main img:not(.thumbnail)"))
        assert (edition.NOTE in soup.article.text) == (name != "index")


@pytest.mark.whole
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_pictures_have_the_texts_of_their_cells(lesson, book):
    texts = {cell.metadata.get("alt") for cell in files.read(lesson).cells}
    assert {image["alt"] for image in book[lesson.stem].select(".cell_output img[class]")} <= texts
    assert book[lesson.stem].select(".cell_output a > img.drawing, .cell_output a > img.shades")


@pytest.mark.whole
def test_index_has_each_lesson_with_its_doors_and_lessons_their_copies_for_colab(book, written):
    entries = book["index"].select("article section section")
    assert [each.h2.a["href"] for each in entries] == [
        f"{path.stem}.html" for path in (DOOR, *LESSONS)
    ]
    opened = "https://colab.research.google.com/github/ada/gradients/blob/colab/"
    for lesson, each in zip((DOOR, *LESSONS), entries, strict=True):
        small = Image.open(io.BytesIO(base64.b64decode(each.img["src"].partition(",")[2])))
        assert max(small.width / 320, small.height / 200) <= 1 < small.width / 32
        read, colab_copy, file = [link["href"] for link in each.find_all("p")[1].find_all("a")]
        assert (read, colab_copy) == (f"{lesson.stem}.html", opened + lesson.name)
        assert files.read(written / file) == colab.standalone(lesson, "ada/gradients")
        page = book[lesson.stem]
        assert page.find("a", href=colab_copy)
        assert page.find("a", href=file)


@pytest.mark.whole
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_formulas_and_folds_are_those_of_the_source(lesson, book):
    notebook, article = files.read(lesson), book[lesson.stem].article
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    hints = "".join(texts).count("<details><summary>Hint ")
    outputs = [output for cell in files.code_cells(notebook) for output in cell.outputs]
    texts += [output.get("data", {}).get("text/markdown", "") for output in outputs]
    bare = [re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL) for text in texts]
    formulas = sum(len(re.findall(r"\$\$[^$]+\$\$|\$[^$]+\$", text)) for text in bare)
    assert len(article.find_all("math")) == formulas
    hidden = {"Solution": [], "Code": []}
    for cell in files.code_cells(notebook):
        if "solution" in files.tags(cell):
            hidden["Solution"].append(cell.source)
        elif cell.metadata.get("jupyter", {}).get("source_hidden"):
            hidden["Code"].append(cell.source)
    folds = {}
    for fold in article.find_all("details"):
        assert not fold.has_attr("open")
        folds.setdefault(fold.summary.text.split()[0], []).append(fold)
    for name, sources in hidden.items():
        assert [fold.pre.text.strip() for fold in folds.get(name, [])] == sources
    assert len(folds["Set-up"]) == 1
    assert len(folds["Hint"]) == hints > 0
    for hint in folds["Hint"]:
        assert hint.find("p", recursive=False)
        prose = [each for each in hint.strings if not each.find_parent("code")]
        assert not re.search(r"[`$]|\*\*", "".join(prose))


@pytest.mark.whole
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_answers_wait_behind_their_predictions(lesson, book):
    cells, article = files.read(lesson).cells, book[lesson.stem].article
    blocks = {each.text.strip(): each for each in article.select(".cell_input")}
    answers = article.select("details.answer")
    pairs = [(cell, before) for before, cell in pairwise(cells) if cell.get("outputs")]
    predicted = [cell for cell, before in pairs if "**Predict**" in before.source]
    assert predicted
    for cell in predicted:
        answer = blocks[cell.source.strip()].find_next("details")
        assert answer in answers, cell.id
        assert answer.select_one(".cell_output > *")
    assert not article.select("details.answer .cell_input")
    assert not any("Predict" in each.text for each in article.select("details.answer strong"))


def folded(*cells) -> list[tuple[str | None, str]]:
    """Return what the cells behind a prediction become: answer and source."""
    prediction, shown = new_markdown_cell("**Predict** it."), new_output("stream", text="7")
    cells = [
        new_markdown_cell(each[1:])
        if each.startswith(">")
        else new_code_cell(each, outputs=[shown] * (each != "silent"))
        for each in cells
    ]
    book = new_notebook(cells=[prediction, *cells])
    predictions.fold(book)
    return [(cell.metadata.get("answer"), cell.source) for cell in book.cells[1:]]


@pytest.mark.parametrize(
    ("answer", "rest"),
    [
        ("Seven.\n\nAs it had to be.", ""),
        ("Seven.\n\n```\nrun\n\n# twice\n```", ""),
        ("Seven.\n\n", "## 2. More\n\nText."),
        ("", "## 2. More\n\nText."),
        ("", "**7** it is.\n\nSo."),
        ("Seven.\n\n", "And then? **Predict** it."),
        ("Seven. And then? ", "**Predict** it."),
    ],
)
def test_answer_ends_where_something_else_begins(answer, rest):
    shown = folded("code", f">{answer}{rest}")
    assert shown == [(answer, "code"), *([(None, rest)] if rest else [])]


def test_answer_takes_every_output_and_what_is_said_of_the_last():
    assert folded("silent", ">Seven.") == [(None, "silent"), (None, "Seven.")]
    shown = folded("silent", "first", "last", ">Seven.")
    assert shown == [(None, "silent"), ("", "first"), ("Seven.", "last")]


def test_drawings_are_told_from_pictures_of_numbers():
    for kind, picture in (
        ("drawing", Image.new("RGB", (64, 64), "white")),
        ("shades", Image.linear_gradient("L")),
    ):
        picture.save(file := io.BytesIO(), format="png")
        assert edition.kind(base64.b64encode(file.getvalue()).decode()) == kind


def test_formula_that_cannot_be_converted_is_named_and_leaves_the_old_pages(desk, capfd):
    notebook = good_lesson()
    first = "# A lesson\n\nA promise.\n\n*Reading: an hour. Running: a day.*\n\n$\\nonsense x$"
    notebook.cells[0].source = first
    save(notebook, "01_a")
    old = Path("build/html/index.html")
    old.parent.mkdir(parents=True)
    old.write_text("old")
    with pytest.raises(ValueError, match="was not written"):
        pages.build()
    said = capfd.readouterr().err
    assert "01_a.ipynb" in said
    assert r'\nonsense x cannot be converted: Unknown LaTeX command "\nonsense"' in said
    assert old.read_text() == "old"


# Each list names what is wrong, also in what was folded. The theme needs some time for its tables.
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const all = (selector) => [...document.querySelectorAll(`.bd-article ${selector}`)];
  const opened = () => all("details").filter((fold) => fold.open).length;
  const before = opened();
  const root = document.documentElement;
  root.dataset.theme = "dark";
  dispatchEvent(new Event("beforeprint"));
  const [printed, ink] = [opened(), root.dataset.theme];
  dispatchEvent(new Event("afterprint"));
  const unlike = [ink, root.dataset.theme].join() != "light,dark";
  const after = opened();
  for (const button of all(".unfold button")) button.click();
  const kept = (box) => {
    const marks = localStorage.length;
    box.click();
    return localStorage.length == marks + 1;
  };
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
    const code = button.closest(".highlight").querySelector("pre");
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
  const squashed = (image) => {
    const { width, height } = box(image);
    return Math.abs((width / height) * (image.naturalHeight / image.naturalWidth) - 1) > 0.02;
  };
  const cut = (table) => {
    const around = table.closest(".pst-scrollable-table-container, .text_html");
    const { overflowX, backgroundAttachment } = getComputedStyle(around);
    const shaded = overflowX == "auto" && backgroundAttachment == "local, local, scroll, scroll";
    return around.scrollWidth > around.clientWidth && (innerWidth > 1000 || !shaded);
  };
  const lost = (entry) => {
    const field = entry.parentElement.previousElementSibling.querySelector("input");
    const seen = (said) => {
      field.value = said;
      field.dispatchEvent(new Event("input"));
      return [...entry.parentElement.children].filter((each) => box(each).width);
    };
    const codes = [...entry.querySelectorAll("code")].map((each) => each.textContent);
    const printed = codes.filter((each) => each.includes(": ..."));
    const said = [entry.querySelector("a").textContent, ...printed];
    const found = said.map((each) => seen(each.replaceAll("...", " 0x7f ")));
    return found.some((few) => !few.includes(entry) || few.length > 12) || !seen("").length;
  };
  const light = (colour) => {
    const parts = colour.map((part) => part / 255)
      .map((part) => part > 0.04 ? ((part + 0.055) / 1.055) ** 2.4 : part / 12.92);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05;
  };
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const pale = (element) => {
    let paper = element;
    while (parts(getComputedStyle(paper).backgroundColor)[3] === 0) paper = paper.parentElement;
    const pair = [getComputedStyle(element).color, getComputedStyle(paper).backgroundColor];
    const [low, high] = pair.map((each) => light(parts(each))).sort((a, b) => a - b);
    return high / low < 4.5;
  };
  const said = (element) =>
    [...element.childNodes].some((each) => each.nodeType == 3 && each.data.trim());
  const unread = (theme) => {
    document.documentElement.dataset.theme = theme;
    const seen = all(":not(.headerlink)").filter((each) => said(each) && box(each).width);
    return texts(seen.filter(pale));
  };
  const texts = (elements) => elements.map((each) => each.textContent);
  const found = {
    inner: innerWidth,
    fits: document.documentElement.scrollWidth <= innerWidth,
    copies: all(".copybtn").length == all(":not(.highlight-myst-ansi) > .highlight > pre").length,
    covering: texts(all(".copybtn").filter(covers).map((each) => each.previousSibling)),
    undrawn: texts(all("math").filter((each) => !box(each).width)),
    tight: texts(all('math[display="block"] :is(munder, mover, munderover)').filter(tight)),
    broken: [...all("td"), ...all("th")].flatMap(broken),
    squashed: all("img").filter(squashed).map((each) => each.alt),
    cut: texts(all("table").filter(cut)),
    lost: texts(all(".filter + ul > li").filter(lost)),
    fields: all(".filter").length,
    folds: [before, printed, after, opened()],
    unlike: unlike,
    done: all(".done input").filter(kept).length,
    pale: unread("light"),
    dim: unread("dark"),
  };
  parent.postMessage([NAME, found], "*");
}, 1000));</script>"""
# A window of a browser cannot be as narrow as a phone; a frame in it can.
PHONE = """<!DOCTYPE html><script>
const found = {};
addEventListener("message", (event) => {
  found[event.data[0]] = event.data[1];
  document.documentElement.dataset.found = JSON.stringify(found);
});</script>"""


@pytest.mark.whole
@pytest.mark.parametrize("width", [360, 390, 1280])
def test_pages_can_be_read_at_this_width(width, book, written, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser: install chromium")
    copy = Path(shutil.copytree(written, tmp_path / "copy"))
    phones = PHONE
    for name in book:
        page = copy / f"{name}.html"
        probe = PROBE.replace("NAME", json.dumps(name))
        page.write_text(page.read_text().replace("</body>", f"{probe}</body>"))
        phones += f'<iframe src="{page.name}" style="width: {width}px; height: 800px; border: 0">'
        phones += "</iframe>"
    (copy / "phones.html").write_text(phones)
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--window-size={width + 100},900", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--v=0", "--virtual-time-budget=60000", "--dump-dom"]
    command.append((copy / "phones.html").as_uri())
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert not re.search(r"CONSOLE.*(Uncaught|Failed|ERR_)", done.stderr)
    results = json.loads(unescape(re.search(r'data-found="([^"]+)"', done.stdout)[1]))
    assert results.keys() == book.keys()
    for name, found in results.items():
        assert found.pop("inner") == width
        assert found.pop("fields") == (name == "06_limits")
        assert found.pop("fits"), name
        assert found.pop("copies"), name
        folds = len(book[name].select(".bd-article details"))
        assert found.pop("folds") == [0, folds, 0, folds], name
        exercises = book[name].find_all("strong", string=re.compile(r"^Exercise \d+$"))
        assert found.pop("done") == len(exercises), name
        assert not any(found.values()), (name, found)
