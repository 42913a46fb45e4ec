"""What is known of layers: from a layer's input and the gradient at its output to its gradients.

A kind of layer is one file: its `Use`, and for each function that makes such a use an adapter,
which takes the function's arguments and returns a `Call` (see `helpers.layers.use`). A new kind is
one more file, and its line in `helpers.layers.kinds`.
"""
