"""What is known of layers: their per-sample gradients by activations and output gradients.

A kind of layer is one file: its rule, a subclass of `LayerCall` with the formula, and for each
function of torch that makes such a call a matcher, which takes the function's arguments and returns
a `MatchedCall`. A new kind is one more file, and its line in `LAYER_RULES` of the recorder.
"""
