"""The libraries that compute per-sample gradients too, each in a module of its own.

Each module has `absent()`, a sentence if the peer is not there, else None. Those that run beside
torch have `build(model, images, labels)`, which returns the function to be timed; `jax` has a
process and an environment of its own.
"""

from helpers.study.peers import backpack_batchgrad, expanded_weights, jax, opacus_hooks

__all__ = ["IN_PROCESS", "jax"]

IN_PROCESS = {
    "Opacus hooks": opacus_hooks,
    "ExpandedWeights": expanded_weights,
    "BackPACK": backpack_batchgrad,
}
"""`{name: module}` of the peers that run beside torch."""
