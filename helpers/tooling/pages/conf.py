"""Sphinx's settings for the reading edition: saved outputs, formulas as MathML, no network."""

import os

from docutils import nodes
from docutils.utils.math import MathError
from sphinx.util import logging

from helpers.tooling import pages
from helpers.tooling.pages import formulas

logger = logging.getLogger(__name__)

project = html_title = "Per-sample gradients in PyTorch"
language = "en"
extensions = ["myst_nb", "sphinx_copybutton"]
nb_execution_mode = "off"
nb_custom_formats = {".ipynb": f"{pages.__name__}.read"}
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
repo = os.environ.get("REPO")
if repo:
    html_theme_options |= {
        "repository_url": f"https://github.com/{repo}",
        "repository_branch": "colab",  # `.ci/colab` publishes copies that stand alone
        "launch_buttons": {"colab_url": "https://colab.research.google.com"},
    }
html_css_files = ["style.css"]
html_js_files = ["pages.js"]
html_static_path = html_css_files + html_js_files
html_math_renderer = "mathml"
html_use_index = False
copybutton_selector = "div:not(.highlight-myst-ansi) > .highlight > pre"


def formula(self, node):
    """Write a formula of a page."""
    latex = node.astext().strip()
    block = isinstance(node, nodes.math_block)
    try:
        self.body.append(formulas.mathml(latex, block))
    except MathError as error:
        logger.warning("the formula %s cannot be converted: %s", latex, error, location=node)
    raise nodes.SkipNode


def setup(app):
    """Register how formulas are written."""
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
