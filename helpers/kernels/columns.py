"""A kernel column by column, by products of Jacobians with vectors."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from tqdm import tqdm

from helpers.curvature import push
from helpers.jacobians import loop_jacobians, unflatten_jacobians
from helpers.transforms import batches, checks, fallback, samples
from helpers.transforms.batches import Batch
from helpers.transforms.known_wrong import JACREV, OUTSIDE


def fill(model: nn.Module, x1: Batch, x2: Batch, kernel: Tensor, chunk_size: int) -> Tensor:
    """Fill the kernel a column at a time: pull an output of a sample back, push it forward."""
    params = checks.select_parameters(model)
    outputs = kernel.shape[2]
    transformable = True

    def mapped(data: Batch, differentiate: Callable, otherwise: Callable) -> dict | Tensor:
        def run(model: nn.Module, *sample: Tensor) -> Tensor:
            return batches.call(model, *data.of_one(sample)).squeeze(0)

        function = samples.functional(run, model, params, JACREV, OUTSIDE)

        def one(params: dict, buffers: dict, *sample: Tensor) -> dict | Tensor:
            return differentiate(*vjp(lambda own: function(own, buffers, *sample), params))

        compute = vmap(one, in_dims=(None, None, *data.in_dims))
        options = {"otherwise": otherwise, "chunk_size": chunk_size}
        return samples.batched(compute, model, params, data.leaves, **options)

    def pulled(sample: Batch, chosen: Tensor) -> dict:
        def pull(values: Tensor, back: Callable) -> dict:
            return back(chosen.to(values.dtype))[0]

        def row() -> dict:
            rows = loop_jacobians(model, sample)
            return unflatten_jacobians(chosen.to(rows.dtype) @ rows, model)

        return {name: rows[0] for name, rows in mapped(sample, pull, row).items()}

    one_hot = torch.eye(outputs, dtype=kernel.dtype, device=kernel.device)
    whole = pulled(x1[:1], one_hot.sum(0))
    directions = [(j, b) for j in range(len(x2)) for b in range(outputs)]
    for j, b in tqdm(directions, desc="kernel", leave=False, delay=1):
        tangent = pulled(x2[j : j + 1], one_hot[b])

        def pushed(values: Tensor, back: Callable, tangent: dict = tangent) -> Tensor:
            return push.push(values, back, tangent)

        def column(tangent: dict = tangent) -> Tensor:
            flat = torch.cat([tensor.flatten() for tensor in tangent.values()])
            singles = (x1[i : i + 1] for i in range(len(x1)))
            return torch.cat([loop_jacobians(model, each) @ flat for each in singles])

        found = mapped(x1, pushed, column) if transformable else column()
        if transformable and j == 0:
            try:
                push.check_pushed(found[0], torch.ones_like(found[0]), whole, tangent)
            except NotImplementedError as error:
                transformable, found = False, column()
                fallback.warn(f"the kernel comes from a loop over the samples, slowly: {error}")
        kernel[:, j, :, b] = found
    return kernel
