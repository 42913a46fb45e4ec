"""Slides: answers behind their predictions, nothing from a network, nothing cut in a browser."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup

from helpers.tooling import slides
from helpers.tooling.lesson import copies, files
from tests.tooling.samples import DOOR, LESSONS, browse

# Each list names slides, with all that they show step by step: blocks that no scrolling reaches,
# blocks that could have fitted and do not, formulas and figures that are not drawn.
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const found = { slides: 0, steps: 0, lost: [], cut: [], undrawn: [] };
  const box = (element) => element.getBoundingClientRect();
  for (const slide of Reveal.getSlides()) {
    const { h, v } = Reveal.getIndices(slide);
    Reveal.slide(h, v, 99);
    const screen = box(document.querySelector(".slides"));
    const blocks = [...slide.children];
    const beyond = blocks.filter((each) => box(each).bottom > screen.bottom + 1);
    const scrolls = getComputedStyle(slide).overflowY == "auto";
    found.slides += 1;
    found.steps += new Set(blocks.map((each) => each.dataset.fragmentIndex)).size - 1;
    if (beyond.length && (!scrolls || blocks.length > 1)) found.cut.push([h, v]);
    if (blocks.some((each) => box(each).right > screen.right || !box(each).width))
      found.lost.push([h, v]);
    const drawn = [...slide.querySelectorAll("math, img")];
    if (drawn.some((each) => !box(each).height || each.naturalWidth === 0))
      found.undrawn.push([h, v]);
  }
  document.documentElement.dataset.found = JSON.stringify(found);
}, 500));</script>"""


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("talk") / "slides"
    slides.build([DOOR, *LESSONS], folder)
    return folder


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_deck_holds_no_answer_before_its_step(path):
    notebook, deck = files.read(path), slides.deck(path)
    text = "\n".join(cell.source for cell in deck.cells)
    solutions = [each for each in notebook.cells if "solution" in files.tags(each)]
    assert [each.id for each in solutions if each.source.partition("\n")[0] in text] == []
    assert not re.search(r"<details>|\.ipynb\)|exercises\.check\(|devices\.resolve", text)
    kinds = [cell.metadata.get("slideshow", {}).get("slide_type") for cell in deck.cells]
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    told = re.sub(r"(?s)<details><summary>Hint.+?</details>", "", "\n".join(texts))
    told = re.sub(r".*\]\(.*|</?(details|summary)>", "", told.replace(copies.EXERCISES, ""))
    shown = "".join(text.split())  # a prediction may begin a cell of its own
    assert [each for each in told.splitlines() if "".join(each.split()) not in shown] == []
    sections = re.findall(r"(?m)^## .+", "\n".join(texts))
    assert kinds.count("slide") == 1 + len(sections)
    opening = [each for each in deck.cells if "**Predict**" in each.source]
    assert opening
    assert all(each.metadata.slideshow.slide_type != "-" for each in opening)
    assert kinds.count("fragment") >= len(opening)


@pytest.mark.whole
@pytest.mark.parametrize("path", [DOOR, *LESSONS], ids=lambda path: path.stem)
def test_slides_stand_alone_and_nothing_is_cut(path, written, tmp_path):
    page = (written / f"{path.stem}.slides.html").read_text()
    soup = BeautifulSoup(page, "html.parser")
    assert "Permission is hereby granted" in page  # as the license of reveal.js asks
    for each in soup.select("img, script, link, iframe, source"):
        assert (each.get("src") or each.get("href") or "data:").startswith("data:"), each
    for link in soup.select('.slides a[href^="#"]'):
        assert soup.find(id=unquote(link["href"][1:])), link
    assert not re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", str(soup.select("style")))
    assert not re.search(r"\$[^$]*\\[^$]*\$", soup.select_one(".slides").text)
    copy = tmp_path / "copy.html"
    copy.write_text(page.replace("</html>", f"{PROBE}</html>"))
    found = browse(copy, 1280)
    assert found.pop("slides") > len(soup.select(".slides > section"))
    found.pop("steps")  # none, where each answer is on a slide of its own
    assert not any(found.values()), found
