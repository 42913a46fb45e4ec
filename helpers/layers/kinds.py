"""The kinds of layers of which something is known: which function is a call of which."""

from collections.abc import Callable

from helpers.layers import convolution, embedding, linear
from helpers.layers.use import Adapter

CALLS: dict[Callable, Adapter] = {
    **linear.CALLS,
    **convolution.CALLS,
    **embedding.CALLS,
}
