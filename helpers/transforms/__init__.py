"""What all ways to per-sample gradients stand on: modules, samples, derivatives, checks."""
