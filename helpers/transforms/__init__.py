"""What all methods share: model state, samples, derivatives, checks and fallbacks."""
