"""Markdown of a lesson as HTML: formulas as MathML, links between pages, anchors of headings."""

import re
from html import escape, unescape
from xml.etree.ElementTree import Element, tostring

from latex2mathml.converter import convert_to_element
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath


class Prose(IPythonRenderer):
    """What a lesson's markdown becomes; `headings` collects (anchor, text) of its sections."""

    def __init__(self):
        super().__init__(escape=False)
        self.headings: list[tuple[str, str]] = []

    def inline_math(self, body: str) -> str:
        """Convert a formula in a line."""
        return formula(body, "inline")

    def block_math(self, body: str) -> str:
        """Convert a formula that stands alone."""
        return formula(body, "block")

    def codespan(self, text: str) -> str:
        """Let a long name break behind `_`, `.` or `:` where it has to, not amid a word."""
        return re.sub(
            r"[^\s<>]{30,}",
            lambda name: re.sub(r"(?<=[_.:])(?=[^\W_])", "<wbr>", name[0]),
            super().codespan(text),
        )

    def heading(self, text: str, level: int, **_: object) -> str:
        """Give a heading the anchor that Jupyter gives it."""
        anchor = escape(re.sub(r"<[^>]+>", "", text).replace(" ", "-"))
        if level == 2:
            self.headings.append((anchor, text))
        return f'<h{level} id="{anchor}">{text}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """Lead to a lesson's page; leave of a link to a file that is not there only its text."""
        lesson = re.fullmatch(r"(\d\d)_\w+\.ipynb(#.*)?", url)
        if lesson:
            return f'<a href="{lesson[1]}.html{escape(lesson[2] or "")}">{text}</a>'
        if url.startswith(("#", "http://", "https://")):
            return super().link(text, url, title)
        return text

    def table(self, text: str) -> str:
        """Let a table that is too wide scroll in a box of its own."""
        return f'<div class="wide" tabindex="0"><table>{text}</table></div>\n'

    def html(self, source: str) -> str:
        """Convert markdown."""
        return MarkdownWithMath(renderer=self).render(source)


def formula(latex: str, display: str) -> str:
    r"""Convert a formula to MathML.

    The bars of a norm become a pair, so that both grow alike, and names such as log stand apart
    from what they are applied to.

    Args:
        latex: What stands between the dollar signs.
        display: `inline` or `block`.

    Raises:
        ValueError: A command is not known to latex2mathml, which would show its name instead.
    """
    paired = latex.replace(r"\lVert", r"\left\lVert ").replace(r"\rVert", r"\right\rVert ")
    try:
        tree = convert_to_element(paired, display=display)
    except Exception as error:  # it raises many kinds
        raise ValueError(f"the formula ${latex}$ cannot be converted: {error}") from error
    for element in tree.iter():
        if element.tag == "mo" and (_is_name(element) or element.text == "&#x0007C;"):
            # As an operator that no browser knows a name would get wide spaces on both sides, and
            # so would a bar of |x||y| that neither begins nor ends the formula.
            element.attrib.update(lspace="0", rspace="0")
    for row in list(tree.iter("mrow")):
        _part_names(row)
    mathml = unescape(tostring(tree, encoding="unicode"))
    unknown = re.search(r"\\[A-Za-z]+", mathml)
    if unknown:
        raise ValueError(f"the formula ${latex}$ has {unknown[0]}, which cannot be converted")
    return mathml


SCRIPTS = ("msub", "msup", "msubsup", "munder", "mover", "munderover")


def _is_name(element: Element) -> bool:
    """Say whether it is log, max or the like: letters of one word, where a variable has one."""
    letters = (element.text or "").replace("&#x02009;", "")  # the space in arg max
    return element.tag in ("mi", "mo") and len(letters) > 1 and letters.isalpha()


def _part_names(row: Element) -> None:
    """Put a thin space between a name and its neighbours, as TeX does, but none at a bracket."""
    for place in range(len(row) - 1, 0, -1):
        pair = _first(row[place - 1], SCRIPTS), _first(row[place], (*SCRIPTS, "mrow"))
        names = [_is_name(each) for each in pair]
        others = [each.tag for each, name in zip(pair, names, strict=True) if not name]
        if any(names) and not {"mo", "mspace"}.intersection(others):
            row.insert(place, Element("mspace", width="0.167em"))


def _first(element: Element, containers: tuple[str, ...]) -> Element:
    """Return what stands first in it, at whatever depth."""
    while element.tag in containers and len(element):
        element = element[0]
    return element
