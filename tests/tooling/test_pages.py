"""The reading edition: complete, linked, without a network, and the same folds as its source."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from helpers.tooling import colab
from helpers.tooling.lesson import files, form, predictions
from helpers.tooling.pages import __main__ as pages
from tests.support.samples import DOOR, LESSONS, ROOT, good_lesson, save

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
    opened = "https://colab.research.google.com/github/ada/gradients/blob/colab/"
    entries = {}
    for entry in book["index"].select("article section section section"):
        entries[entry.h3.a["href"]] = entry
    assert sorted(entries) == [f"{lesson.stem}.html" for lesson in ALL]
    for lesson in ALL:
        page = f"{lesson.stem}.html"
        has_figure = any(cell.metadata.get("alt") for cell in files.read(lesson).cells)
        assert bool(entries[page].select_one("img.thumbnail")) == has_figure
        _, doors = entries[page].find_all("p")[:2]
        read, colab_copy, download = [link["href"] for link in doors.find_all("a")]
        assert (read, colab_copy) == (page, opened + lesson.name)
        assert files.read(written / download) == colab.standalone(lesson, "ada/gradients")
        links = [link["href"] for link in book[lesson.stem].select("a[href]")]
        assert colab_copy in links
        assert download in links


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


def folds_of(article) -> dict[str, list]:
    """Find the folds of a page, none of which is open, by the first word of their names."""
    found = {name: [] for name in ("Set-up", "Solution", "Code", "Hint", "Show")}
    for fold in article.find_all("details"):
        assert not fold.has_attr("open")
        found.setdefault(fold.summary.text.split()[0], []).append(fold)
    return found


def code_in(folds) -> list[str]:
    return [fold.pre.text.strip() for fold in folds]


@pytest.mark.whole
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_code_is_folded_as_in_the_source(lesson, book):
    notebook = files.read(lesson)
    predictions.fold(notebook)
    hidden = {"Set-up": [], "Solution": [], "Code": []}
    for cell in files.code_cells(notebook):
        if cell.source.startswith(form.SETUP):
            hidden["Set-up"].append(cell.source)
        elif "solution" in files.tags(cell):
            hidden["Solution"].append(cell.source)
        # With its answer, code is in a fold of another name: see the test of predictions.
        elif "hide-input" in files.tags(cell) and "answer" not in cell.metadata:
            hidden["Code"].append(cell.source)
    folds = folds_of(book[lesson.stem].article)
    for name, sources in hidden.items():
        assert code_in(folds[name]) == sources


@pytest.mark.whole
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_hints_are_folded_and_converted_from_markdown(lesson, book):
    hints = 0
    for cell in files.read(lesson).cells:
        if cell.cell_type == "markdown":
            hints += cell.source.count("<details><summary>Hint ")
    folds = folds_of(book[lesson.stem].article)
    assert len(folds["Hint"]) == hints
    assert hints or not folds["Solution"], "an exercise has hints"
    for hint in folds["Hint"]:
        for text in hint.strings:
            if not text.find_parent("code"):
                assert not re.search(r"[`$]|\*\*", text), "Markdown that was not converted"


@pytest.mark.whole
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_what_answers_a_prediction_is_folded_below_its_code(lesson, book):
    notebook = files.read(lesson)
    predictions.fold(notebook)
    answered = [cell for cell in notebook.cells if "answer" in cell.metadata]
    code, results = [], []
    for fold in folds_of(book[lesson.stem].article)["Show"]:
        (code if fold.select_one(".cell_input") else results).append(fold)
    hidden = [cell.source for cell in answered if "hide-input" in files.tags(cell)]
    assert code_in(code) == hidden
    for fold, cell in zip(results, answered, strict=True):
        assert fold.parent.select_one(".cell_input").text.strip() == cell.source
        assert fold.select_one(".cell_output > *")
        assert not fold.find("strong", string=re.compile("Predict"))
        begins = re.match(r"[\w ]*", cell.metadata.answer)[0]
        assert begins in fold.text


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


# A window of a browser cannot be as narrow as a phone; a frame in it can.
PHONE = """<!DOCTYPE html><script>
const found = {};
addEventListener("message", (event) => {
  const [page, looks] = event.data;
  found[page] = looks;
  document.documentElement.dataset.found = JSON.stringify(found);
});</script>"""
PROBE = (ROOT / "tests" / "tooling" / "pages_probe.js").read_text("utf-8")


def browse(page: Path, width: int) -> dict:
    """Open a page in a browser, which must not complain; return what its probe has found."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        browser = shutil.which(name)
        if browser:
            break
    else:
        pytest.skip("no browser: install chromium")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--window-size={width},900", f"--user-data-dir={page.parent / 'profile'}", "--v=0"]
    command += ["--virtual-time-budget=60000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
    assert not re.search(r"CONSOLE.*(Uncaught|Failed|ERR_)", done.stderr)
    return json.loads(unescape(re.search(r'data-found="([^"]+)"', done.stdout)[1]))


@pytest.mark.whole
@pytest.mark.parametrize("width", [360, 1280])
def test_pages_can_be_read_at_this_width(width, book, written, tmp_path):
    copy = Path(shutil.copytree(written, tmp_path / "copy"))
    phones = PHONE
    for name in book:
        page = copy / f"{name}.html"
        probe = f"<script>const PAGE = {json.dumps(name)};\n{PROBE}</script>"
        page.write_text(page.read_text("utf-8").replace("</body>", f"{probe}</body>"), "utf-8")
        style = f"width: {width}px; height: 800px; border: 0"
        phones += f'<iframe src="{page.name}" style="{style}"></iframe>'
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
        assert not any(found.values()), (name, found)  # what is left are faults
