"""The process of `helpers.study.peers.jax`: run as a file, with JAX and numpy and without torch."""

import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[3])  # not this folder, where a module has JAX's name

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from helpers.study.requests import Worker  # noqa: E402

Weights = dict[str, jax.Array]


def _linear(w: Weights, name: str, x: jax.Array) -> jax.Array:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(w: Weights, name: str, x: jax.Array) -> jax.Array:
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def _conv(w: Weights, name: str, x: jax.Array) -> jax.Array:
    x = jax.lax.conv_general_dilated(x, w[f"{name}.weight"], (1, 1), "VALID")
    return x + w[f"{name}.bias"][:, None, None]


def cnn(w: Weights, images: jax.Array) -> jax.Array:
    """`helpers.models.SimpleCNN`."""
    x = jax.nn.relu(_conv(w, "conv1", images))
    x = jax.nn.relu(_conv(w, "conv2", x))
    window = (1, 1, 2, 2)
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    x = jax.nn.relu(_linear(w, "fc1", x.reshape(len(x), -1)))
    return _linear(w, "fc2", x)


def mlp(w: Weights, images: jax.Array) -> jax.Array:
    """`helpers.models.MLP`."""
    x = images.reshape(len(images), -1)
    return _linear(w, "fc2", jax.nn.relu(_linear(w, "fc1", x)))


def transformer(w: Weights, images: jax.Array) -> jax.Array:
    """`helpers.models.SmallTransformer`."""
    x = _linear(w, "embed", images[:, 0]) + w["positions.weight"]
    qkv = _linear(w, "qkv", _norm(w, "norm1", x))  # (B, 28, 3 x width)
    qkv = qkv.reshape(*qkv.shape[:2], 3, 4, -1)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    scores = jax.nn.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    attended = (scores @ v).swapaxes(1, 2)
    x = x + _linear(w, "project", attended.reshape(*attended.shape[:2], -1))
    hidden = jax.nn.gelu(_linear(w, "expand", _norm(w, "norm2", x)), approximate=False)
    x = x + _linear(w, "contract", hidden)
    return _linear(w, "head", x.mean(axis=1))


NETWORKS = {"SimpleCNN": cnn, "MLP": mlp, "transformer": transformer}


class JaxWorker(Worker):
    """Builds one candidate with JAX and runs it."""

    def build(self, method: str, model: str, inputs: str) -> None:
        """Read weights, images and labels from a file of numpy arrays, and set up the function."""
        arrays = np.load(inputs)
        given = {name: jnp.asarray(arrays[name]) for name in arrays.files}
        images, labels = given.pop("images"), given.pop("labels")
        network = NETWORKS[model]

        def loss(w: Weights, image: jax.Array, label: jax.Array) -> jax.Array:
            return -jax.nn.log_softmax(network(w, image[None])[0])[label]

        def batch_loss(w: Weights) -> jax.Array:
            chosen = jax.nn.log_softmax(network(w, images))
            return -jnp.take_along_axis(chosen, labels[:, None], axis=1).mean()

        if method == "JAX batch gradient":
            compute = jax.jit(jax.grad(batch_loss))
            self.run = lambda: jax.block_until_ready(compute(given))
        else:
            compute = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))
            self.run = lambda: jax.block_until_ready(compute(given, images, labels))

    def time(self, runs: int) -> list[float]:
        """Warm up with two runs, as torch's timer does, and time the next ones together."""
        for _ in range(2):
            self.run()
        start = time.perf_counter()
        for _ in range(runs):
            self.run()
        return [time.perf_counter() - start]

    def save(self, path: str) -> None:
        """Run once, and save the result as numpy arrays."""
        np.savez(path, **{name: np.asarray(array) for name, array in self.run().items()})


if __name__ == "__main__":
    JaxWorker().serve()
