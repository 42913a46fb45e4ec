"""Measures JAX in an environment of its own: with JAX and NumPy, without torch.

    python -m helpers.study.jax_worker METHOD INPUTS

prints the measurements as JSON. INPUTS is a NumPy file with the weights of
`helpers.models.SimpleCNN` or `MLP` by name, images and labels.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from helpers import memory

Weights = dict[str, jax.Array]
_ROUNDS = 15


def loss(w: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Compute the mean cross-entropy of `SimpleCNN`, or of `MLP`, which has no convolutions."""
    x, window = images, (1, 1, 2, 2)
    if "conv1.weight" in w:
        for layer in ("conv1", "conv2"):
            x = jax.lax.conv_general_dilated(x, w[f"{layer}.weight"], (1, 1), "VALID")
            x = jax.nn.relu(x + w[f"{layer}.bias"][:, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ w["fc1.weight"].T + w["fc1.bias"])
    log_probs = jax.nn.log_softmax(x @ w["fc2.weight"].T + w["fc2.bias"])
    return -jnp.take_along_axis(log_probs, labels[:, None], axis=1).mean()


def build(method: str, inputs: str) -> Callable[[], Weights]:
    """Make the function that is timed."""
    weights = {}
    for name, array in np.load(inputs).items():
        weights[name] = jnp.asarray(array)
    images, labels = weights.pop("images"), weights.pop("labels")

    def loss_of_one(weights: Weights, image: jax.Array, label: jax.Array) -> jax.Array:
        return loss(weights, image[None], label[None])

    compute = jax.grad(loss)
    if method == "JAX jit(vmap(grad))":
        compute = jax.vmap(jax.grad(loss_of_one), in_axes=(None, 0, 0))
    compiled = jax.jit(compute)
    return lambda: jax.block_until_ready(compiled(weights, images, labels))


def measure(run: Callable[[], Any]) -> dict[str, Any]:
    """Time a function after three warm-up runs, the first of which compiles."""
    times = []
    for _ in range(3 + _ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    first_quartile, median, third_quartile = np.quantile(times[3:], [0.25, 0.5, 0.75]).tolist()
    before = memory.page_faults()
    run()
    after = memory.page_faults()
    return {
        "median": median,
        "iqr": third_quartile - first_quartile,
        "rounds": _ROUNDS,
        "first": times[0],
        "held": None,
        "faults": None if before is None or after is None else after - before,
    }


if __name__ == "__main__":
    method, inputs = sys.argv[1:]
    print(json.dumps(measure(build(method, inputs))))
