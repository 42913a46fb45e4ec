"""What is known of layers: from a layer's input and the gradient at its output to its gradients."""
