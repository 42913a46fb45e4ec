"""Methods for per-sample gradients, measured against each other; `jax_worker` has no torch."""
