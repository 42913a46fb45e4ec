"""The libraries that compute per-sample gradients too, each in a module of its own.

Each module has `absent()`, a sentence if the peer is not there, else None. Those that run beside
torch have `build(model, images, labels)`, with a model that maps images `(B, ...)` to logits, and
labels `(B,)`; it returns the function to be timed, which computes `{name: (B, *parameter.shape)}`.
`jax` has a process and an environment of its own.
"""

from helpers.study.peers import backpack_batchgrad, expanded_weights, jax, opacus_hooks

__all__ = ["IN_PROCESS", "absent", "jax"]

IN_PROCESS = {
    "Opacus hooks": opacus_hooks,
    "ExpandedWeights": expanded_weights,
    "BackPACK": backpack_batchgrad,
}
"""`{name: module}` of the peers that run beside torch."""


def absent(method: str) -> str | None:
    """Return why a method cannot run here; `None` if it can, or belongs to no peer."""
    module = jax if method in jax.NAMES else IN_PROCESS.get(method)
    return module.absent() if module else None
