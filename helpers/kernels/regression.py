"""Regression with a kernel between samples and their outputs."""

import torch
from torch import Tensor


def solve(kernel: Tensor, values: Tensor, *, ridge: float = 0.0) -> Tensor:
    """Solve `(kernel + ridge) alpha = values`: the weights of a kernel regression.

    The regression predicts `kernel(x, x1) alpha` for new samples x: summed over the samples and
    the outputs of `x1`.

    Args:
        kernel: `(N, N, Y, Y)`, that of samples with themselves.
        values: `(N, Y)`.
        ridge: What is added to the diagonal, at least 0.

    Returns:
        `(N, Y)`.

    Raises:
        ValueError: The sizes do not match, the kernel is not symmetric or not finite, or it is
            singular with its ridge: two samples are alike, or there are more outputs of samples,
            N x Y, than parameters.

    Example:
        >>> kernel = ntk(nn.Linear(2, 1, bias=False), torch.eye(2))
        >>> solve(kernel, torch.tensor([[3.0], [4.0]]), ridge=1.0)
        tensor([[1.5000],
                [2.0000]])
    """
    size, outputs = (*values.shape, 0, 0)[:2]
    if values.dim() != 2 or kernel.shape != (size, size, outputs, outputs):
        shapes = f"{tuple(kernel.shape)} and {tuple(values.shape)}"
        raise ValueError(f"kernel must be (N, N, Y, Y) and values (N, Y), got {shapes}")
    if not ridge >= 0:
        raise ValueError(f"ridge must be at least 0, got {ridge!r}")
    matrix = kernel.transpose(1, 2).reshape(size * outputs, size * outputs).clone()
    eps, apart = torch.finfo(matrix.dtype).eps, (matrix - matrix.T).abs()
    if len(matrix) and not (apart <= eps**0.5 * matrix.abs().max()).all():  # as of NaN
        raise ValueError("kernel must be symmetric and finite, that of one batch with itself")
    matrix.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    rounding = eps * len(matrix)
    pivots = factor.diagonal().square()
    if failed or (len(matrix) and pivots.min() <= rounding * matrix.diagonal().max()):
        raise ValueError(
            f"the kernel of {size} samples x {outputs} outputs is singular with ridge={ridge:g}: "
            "two samples are alike, or there are more outputs of samples than parameters; a "
            "larger ridge helps"
        )
    return torch.cholesky_solve(values.reshape(-1, 1), factor).view(size, outputs)
