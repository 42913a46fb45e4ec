"""Formulas as MathML, which browsers draw without a network."""

import re

from docutils.utils.math.latex2mathml import tex2mathml

NAME = r"<mo>&ApplyFunction;</mo>(?!\s*<mo[^>]*>[(\[])"


def mathml(latex: str, block: bool) -> str:
    """Write a formula; docutils marks the argument of log, but puts no space before it."""
    return re.sub(NAME, '<mspace width="0.167em"/>', tex2mathml(latex, as_block=block))
