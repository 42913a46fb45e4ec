"""Markdown of a lesson as HTML: formulas as MathML, links between pages, anchors of headings."""

import re
from html import escape

from latex2mathml.converter import convert
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

    Args:
        latex: What stands between the dollar signs.
        display: `inline` or `block`.

    Raises:
        ValueError: A command is not known to latex2mathml, which would show its name instead.
    """
    try:
        mathml = convert(latex, display=display)
    except Exception as error:  # it raises many kinds
        raise ValueError(f"the formula ${latex}$ cannot be converted: {error}") from error
    unknown = re.search(r"\\[A-Za-z]+", mathml)
    if unknown:
        raise ValueError(f"the formula ${latex}$ has {unknown[0]}, which cannot be converted")
    return mathml
