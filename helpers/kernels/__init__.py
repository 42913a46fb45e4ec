"""The empirical neural tangent kernel: inner products of the Jacobians of a model's outputs.

`kernel[i, j, a, b]` is the inner product of the gradients of output a of sample i and of output b
of sample j, over all parameters with `requires_grad` (Jacot et al., arXiv:1806.07572). The three
ways are those of Novak, Sohl-Dickstein and Schoenholz (arXiv:2206.08720): contract the Jacobians,
push a vector through a vjp and a jvp, or use the structure of the layers. None of them holds more
than two chunks of samples at a time, however many samples and parameters there are.
"""

from helpers.kernels.regression import solve
from helpers.kernels.tangent import ntk

__all__ = ["ntk", "solve"]
