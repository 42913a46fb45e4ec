"""Pictures that the reader moves: one frame for each place of a slider."""

import base64
import io
from collections.abc import Callable, Mapping
from html import escape

from matplotlib.figure import Figure
from PIL import Image


class Slider:
    """Frames of which one is shown, chosen with a slider.

    It works wherever a notebook may run a line of script: Jupyter, Colab, a saved page. Elsewhere
    the last frame is seen. `matplotlib.animation.Animation.to_jshtml` asks a server for icons, has
    a random name, and is empty without its script.

    Args:
        draw: Draws one frame.
        frames: `{title: what draw gets}`, in order. The title is read beside the slider.
        label: What is moved.
    """

    def __init__(self, draw: Callable[..., Figure], frames: Mapping[str, object], label: str):
        self._label = label
        self._frames = {title: _png(draw(content)) for title, content in frames.items()}

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        titles, last = list(self._frames), len(self._frames) - 1
        images = "\n".join(
            f'<img src="data:image/png;base64,{png}" alt="{escape(title)}"'
            f' style="max-width: 100%"{"" if number == last else " hidden"}>'
            for number, (title, png) in enumerate(self._frames.items())
        )
        move = (
            "const all = this.closest('figure').querySelectorAll('img');"
            "all.forEach((image, number) => {image.hidden = number != this.value});"
            "this.nextElementSibling.textContent = all[this.value].alt"
        )
        page = (
            f'<figure style="margin: 0">\n{images}\n<figcaption>'
            f'<label>{escape(self._label)} <input type="range" min="0" max="{last}" value="{last}"'
            f' style="width: 12em; vertical-align: middle" oninput="{escape(move)}">'
            f" <output>{escape(titles[-1])}</output></label></figcaption>\n</figure>"
        )
        return {
            "text/html": page,
            "image/png": self._frames[titles[-1]],
            "text/plain": f"<{len(titles)} frames: {titles[0]} to {titles[-1]}>",
        }


def _png(figure: Figure) -> str:
    """Draw a figure in 256 colours, with which it looks the same and has fewer bytes."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    Image.open(drawn).convert("RGB").quantize().save(small, format="png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()
