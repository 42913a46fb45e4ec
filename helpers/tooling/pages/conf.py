"""Sphinx's settings for the reading edition: saved outputs, formulas as MathML, no network."""

import os
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

from helpers.tooling.lesson import files
from helpers.tooling.pages import edition

logger = logging.getLogger(__name__)

project = html_title = "Per-sample gradients in PyTorch"
language = "en"
extensions = ["myst_nb", "sphinx_copybutton"]
nb_execution_mode = "off"
nb_custom_formats = {".ipynb": "helpers.tooling.pages.edition.read"}
nb_render_markdown_format = "myst"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
html_theme = "sphinx_book_theme"
html_theme_options = {
    "navbar_persistent": [],
    "footer_content_items": [],  # an author and a year that nobody has set
    "home_page_in_toc": True,
    "secondary_sidebar_items": {"index": [], "[!i]*": ["page-toc.html"]},
}
if repo := os.environ.get("REPO"):
    html_theme_options |= {
        "repository_url": f"https://github.com/{repo}",
        "repository_branch": "colab",  # `.ci/colab` publishes copies that stand alone
        "launch_buttons": {"colab_url": "https://colab.research.google.com"},
    }
html_css_files, html_js_files = ["style.css"], ["filter.js", "folds.js"]
html_static_path = [*html_css_files, *html_js_files]
html_math_renderer = "mathml"
html_use_index = False
copybutton_selector = "div:not(.highlight-myst-ansi) > .highlight > pre"

LONG = r'(?<=<span class="pre">)[^<\s]{30,}'
NAME = r"<mo>&ApplyFunction;</mo>(?!\s*<mo[^>]*>[(\[])"


def formula(self, node):
    """Write MathML; docutils marks what log is applied to, but leaves no space before it."""
    latex, block = node.astext().strip(), isinstance(node, nodes.math_block)
    try:
        mathml = tex2mathml(latex, as_block=block)
    except MathError as error:
        logger.warning("the formula %s cannot be converted: %s", latex, error, location=node)
    else:
        self.body.append(re.sub(NAME, '<mspace width="0.167em"/>', mathml))
    raise nodes.SkipNode


def list_lessons(app, docname, source):
    """Write the entries of the lessons below what index.md says."""
    if docname == "index":
        source[0] += "".join(edition.entry(lesson, repo) for lesson in files.find(app.srcdir))


def break_names(app, pagename, templatename, context, doctree):
    """Let a long name in code break behind `_`, `.` or `:` where it has to, not amid a word."""
    context["body"] = re.sub(
        LONG,
        lambda name: re.sub(r"(?<=[_.:])(?=[^\W_])", "<wbr>", name[0]),
        context.get("body", ""),
    )


def setup(app):
    """Register what this file adds to Sphinx."""
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("source-read", list_lessons)
    app.connect("html-page-context", break_names)
