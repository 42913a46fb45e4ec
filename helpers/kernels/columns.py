"""A kernel column by column, by products of Jacobians with vectors."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import jvp, vjp
from tqdm import tqdm

from helpers.jacobians import loop_jacobians, unflatten_jacobians
from helpers.transforms import batches, checks, samples
from helpers.transforms.batches import Batch


def fill(model: nn.Module, x1: Batch, x2: Batch, kernel: Tensor, chunk_size: int) -> Tensor:
    """Fill the kernel a column at a time: pull an output of a sample back, push it forward."""
    params = checks.select_parameters(model)
    outputs = kernel.shape[2]

    def run(model: nn.Module, *sample: Tensor) -> Tensor:
        return batches.call(model, *x1.of_one(sample)).squeeze(0)

    def mapped(data: Batch, differentiate: Callable, otherwise: Callable) -> dict | Tensor:
        def transform(function: Callable) -> Callable:
            def one(params: dict, buffers: dict, *sample: Tensor) -> Tensor:
                return differentiate(lambda own: function(own, buffers, *sample), params)

            return one

        options = {"transform": transform, "otherwise": otherwise, "chunk_size": chunk_size}
        return samples.vmapped(run, model, params, data.leaves, **options)

    directions = [(j, b) for j in range(len(x2)) for b in range(outputs)]
    for j, b in tqdm(directions, desc="kernel", leave=False, delay=1):
        sample = x2[j : j + 1]

        def pull(of: Callable, params: dict, b: int = b) -> dict:
            values, back = vjp(of, params)
            chosen = torch.arange(len(values), device=values.device) == b
            return back(chosen.to(values.dtype))[0]

        def row(sample: Batch = sample, b: int = b) -> dict:
            return unflatten_jacobians(loop_jacobians(model, sample)[:, b], model)

        tangent = {name: rows[0] for name, rows in mapped(sample, pull, row).items()}

        def push(of: Callable, params: dict, tangent: dict = tangent) -> Tensor:
            return jvp(of, (params,), (tangent,))[1]

        def column(tangent: dict = tangent) -> Tensor:
            flat = torch.cat([tensor.flatten() for tensor in tangent.values()])
            singles = (x1[i : i + 1] for i in range(len(x1)))
            return torch.cat([loop_jacobians(model, each) @ flat for each in singles])

        kernel[:, j, :, b] = mapped(x1, push, column)
    return kernel
