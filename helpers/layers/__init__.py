"""Per-sample gradients of known layers, from activations and output gradients.

Each kind of layer has one file: its rule, a subclass of `LayerCall` with the formula, and a matcher
for each function of torch that makes such a call, which takes the function's arguments and returns
a `MatchedCall`. To add a kind, write such a file and add it to the recorder's `LAYER_RULES`.
"""
