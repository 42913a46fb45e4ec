"""Products of vectors with the Fisher, empirical Fisher and Gauss-Newton matrices of a model.

With J_i the Jacobian `(Y, P)` of the outputs for sample i, each is a mean over B samples:

- the Fisher matrix of a classifier, `J_i^T (diag(p_i) - p_i p_i^T) J_i`, where p_i are its own
  probabilities: no label occurs in it;
- the empirical Fisher matrix, `g_i g_i^T`, where g_i is the gradient of the loss of sample i;
- the generalised Gauss-Newton matrix, `J_i^T H_i J_i`, where H_i is the Hessian of the loss of
  sample i by its outputs.

For cross-entropy the first and the last are the same. The second is neither, whatever it is called
(Kunstner, Balles and Hennig 2019, arXiv:1905.12558).

A vector is a dictionary `{name: parameter.shape}`. Its names are the parameters that count: with a
part of them, the product is that of the block of the matrix that belongs to this part. The result
has the same names, shapes and dtypes, detached.

No product makes a matrix, and none a gradient of a sample: it goes from the parameters to the
outputs, `J_i v`, and back, `J_i^T u_i` summed over the samples (Schraudolph 2002, "Fast Curvature
Matrix-Vector Products for Second-Order Gradient Descent"). What torch cannot transform so goes by
Jacobians, a chunk at a time. `matrix` makes the matrix of any of them.

The model is left as it was. Refused, each with one sentence: what `helpers.gradients` refuses, an
empty batch, and a vector that does not fit the parameters.
"""

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

from helpers import jacobians
from helpers.transforms import checks, fallback, modules, randomness, samples

LossFn = Callable[[Tensor, Tensor], Tensor]
Vector = dict[str, Tensor]
# `weigh(outputs, pushed, targets)` of one sample: what goes back through its Jacobian.
_Weigh = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_LARGEST = 2**33
"""Bytes of the largest matrix that is made, 8 GiB."""


@torch.inference_mode(False)
def fisher_product(
    model: nn.Module, data: Tensor, vector: Vector, *, chunk_size: int | None = None
) -> Vector:
    """Multiply a vector with the Fisher matrix of a classifier.

    Args:
        model: Any module that maps `(B, ...)` to logits `(B, Y)`.
        data: `(B, ...)`, B at least 1.
        vector: `{name: parameter.shape}`.
        chunk_size: How many samples to take at a time; `None` means all. It bounds the memory.

    Returns:
        `{name: parameter.shape}`, detached.

    Raises:
        TypeError: `data` is no tensor, or `vector` no dictionary of tensors.
        ValueError: One of the refusals of the module, or outputs that are not `(B, Y)`.

    Example:
        >>> model = nn.Linear(1, 2, bias=False)  # two logits, w_0 x and w_1 x
        >>> _ = nn.init.zeros_(model.weight)  # so both classes have the probability 1/2
        >>> data, vector = torch.tensor([[2.0]]), {"weight": torch.tensor([[1.0], [0.0]])}
        >>> fisher_product(model, data, vector)["weight"].flatten()  # x^2 p (1 - p)
        tensor([ 1., -1.])
    """

    def weigh(logits: Tensor, pushed: Tensor, _: None) -> Tensor:
        if logits.dim() != 1:
            raise ValueError(
                f"the model must return logits (B, Y), got {(1, *logits.shape)} for a batch of one"
            )
        p = logits.softmax(dim=0)
        return p * (pushed - p @ pushed)

    checks.check_batch(data=data)
    return _mean(model, (data,), vector, chunk_size, weigh)


@torch.inference_mode(False)
def gauss_newton_product(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tensor,
    targets: Tensor,
    vector: Vector,
    *,
    chunk_size: int | None = None,
) -> Vector:
    """Multiply a vector with the generalised Gauss-Newton matrix of a loss.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, Y)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, B at least 1.
        targets: `(B, ...)`.
        vector: `{name: parameter.shape}`.
        chunk_size: How many samples to take at a time; `None` means all. It bounds the memory.

    Returns:
        `{name: parameter.shape}`, detached.

    Raises:
        TypeError: `data` or `targets` is no tensor, or `vector` no dictionary of tensors.
        ValueError: One of the refusals of the module.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> data, targets = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
        >>> loss_fn = nn.functional.mse_loss  # its second derivative is 2
        >>> vector = {"weight": torch.ones(1, 1)}
        >>> gauss_newton_product(model, loss_fn, data, targets, vector)  # 2 (1 + 9) / 2
        {'weight': tensor([[10.]])}
    """
    compute_loss = _on_one(loss_fn)

    def weigh(prediction: Tensor, pushed: Tensor, target: Tensor) -> Tensor:
        slope = grad(lambda prediction: compute_loss(prediction, target))
        # A Hessian is its own transpose; the `jvp` of torch fails for the slope of mse_loss.
        return vjp(slope, prediction)[1](pushed)[0]

    checks.check_batch(data=data, targets=targets)
    return _mean(model, (data, targets), vector, chunk_size, weigh)


@torch.inference_mode(False)
def empirical_fisher_product(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tensor,
    targets: Tensor,
    vector: Vector,
    *,
    chunk_size: int | None = None,
) -> Vector:
    """Multiply a vector with the empirical Fisher matrix, the mean of all `g_i g_i^T`.

    With labels that were drawn from the model's own probabilities in place of `targets`, its mean
    over the draws is the Fisher matrix.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, Y)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, B at least 1.
        targets: `(B, ...)`.
        vector: `{name: parameter.shape}`.
        chunk_size: How many samples to take at a time; `None` means all. It bounds the memory.

    Returns:
        `{name: parameter.shape}`, detached.

    Raises:
        TypeError: `data` or `targets` is no tensor, or `vector` no dictionary of tensors.
        ValueError: One of the refusals of the module.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(model.weight)
        >>> data, targets = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
        >>> loss_fn = nn.functional.mse_loss  # its gradients are 2 x^2, here 2 and 18
        >>> vector = {"weight": torch.ones(1, 1)}
        >>> empirical_fisher_product(model, loss_fn, data, targets, vector)  # (4 + 324) / 2
        {'weight': tensor([[164.]])}
    """
    compute_loss = _on_one(loss_fn)

    def weigh(prediction: Tensor, pushed: Tensor, target: Tensor) -> Tensor:
        slope = grad(compute_loss)(prediction, target)
        return slope * (slope * pushed).sum()

    checks.check_batch(data=data, targets=targets)
    return _mean(model, (data, targets), vector, chunk_size, weigh)


@torch.inference_mode(False)
@fallback.once
def matrix(product: Callable[[Vector], Vector], like: Vector, *, chunk_size: int = 32) -> Tensor:
    """Make the matrix of a product: for small P, and for an equation to be solved.

    Args:
        product: Maps a vector `{name: shape}` to one with the same names and shapes, linearly,
            for example `functools.partial(fisher_product, model, data)`.
        like: `{name: shape}`, tensors such as the parameters: their order is that of the P rows
            and columns, each tensor flattened, as in `helpers.jacobians`.
        chunk_size: How many columns to compute at a time. It bounds the memory.

    Returns:
        `(P, P)`, detached, in the widest dtype of `like`.

    Raises:
        TypeError: `like` is no dictionary of tensors.
        ValueError: It is empty, the matrix would take more than 8 GiB, the product returns other
            names or shapes, or `chunk_size` is no whole number, at least 1.

    Example:
        >>> double = lambda vector: {name: 2 * tensor for name, tensor in vector.items()}
        >>> matrix(double, {"weight": torch.ones(1, 2)})
        tensor([[2., 0.],
                [0., 2.]])
    """
    _check_dictionary("like", like)
    if chunk_size is None:
        raise ValueError("chunk_size must be a whole number, at least 1, got None")
    checks.check_chunk_size(chunk_size)
    sizes = [tensor.numel() for tensor in like.values()]
    if not sum(sizes):
        raise ValueError("like must hold a parameter at least, got none")
    dtypes = (tensor.dtype for tensor in like.values())
    first = next(iter(like.values())).detach()
    first = first.new_empty(0, dtype=functools.reduce(torch.promote_types, dtypes))
    size = sum(sizes)
    if size**2 * first.itemsize > _LARGEST:
        raise ValueError(
            f"the matrix of {size:,} parameters would take {size**2 * first.itemsize / 1e9:,.0f} "
            "GB: multiply vectors with it instead, or name fewer parameters in like"
        )
    result = first.new_empty(size, size)

    def column(flat: Tensor) -> Tensor:
        parts = flat.split(sizes)
        vector = {
            name: part.reshape(tensor.shape).to(tensor.dtype)
            for (name, tensor), part in zip(like.items(), parts, strict=True)
        }
        returned = product(vector)
        _check_returned(returned, like)
        return torch.cat([returned[name].detach().reshape(-1) for name in like])

    starts = range(0, size, chunk_size)
    for start in tqdm(starts, desc="columns", leave=False, disable=len(starts) < 100):
        count = min(chunk_size, size - start)
        basis = first.new_zeros(count, size)
        basis[torch.arange(count), torch.arange(start, start + count)] = 1
        result[:, start : start + count] = _each(column, basis).T
    return result


def _each(function: Callable[..., Tensor], *batch: Tensor) -> Tensor:
    """Call a function for each sample: with `vmap`, or in a loop if it cannot be transformed.

    Raises:
        ValueError: The function draws random numbers.
    """
    device = batch[0].device
    before = randomness.random_state(device)
    try:
        return vmap(function)(*batch)
    except RuntimeError as error:
        if "randomness error mode" in str(error):
            raise ValueError(randomness.RANDOMNESS) from error
        if fallback.is_no_memory(error):
            raise
    results = torch.stack([function(*sample) for sample in zip(*batch, strict=True)])
    randomness.check_repeatable(before, device)
    return results


def _on_one(loss_fn: LossFn) -> Callable[[Tensor, Tensor], Tensor]:
    """Make the loss a function of one prediction and one target."""

    def compute_loss(prediction: Tensor, target: Tensor) -> Tensor:
        return checks.check_scalar(loss_fn(prediction.unsqueeze(0), target.unsqueeze(0)))

    return compute_loss


def _mean(
    model: nn.Module,
    batch: tuple[Tensor, ...],
    vector: Vector,
    chunk_size: int | None,
    weigh: _Weigh,
) -> Vector:
    """Compute the mean over the samples of `J_i^T weigh(outputs_i, J_i vector, target_i)`."""
    checks.check_model(model)
    checks.check_chunk_size(chunk_size)
    _check_vector(vector, modules.select_parameters(model))
    if not len(batch[0]):
        raise ValueError("data must hold a sample at least, got none")
    batch = tuple(tensor.detach() for tensor in batch)
    vector = {name: tensor.detach() for name, tensor in vector.items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in vector.items()}
    for product in _products(model, batch, vector, chunk_size or len(batch[0]), weigh):
        total = {name: tensor + product[name] for name, tensor in total.items()}
    return {name: tensor / len(batch[0]) for name, tensor in total.items()}


def _products(
    model: nn.Module, batch: tuple[Tensor, ...], vector: Vector, step: int, weigh: _Weigh
) -> Iterator[Vector]:
    """Yield for each chunk the sum over its samples, by `vjp`, or else by Jacobians."""
    stand_in = modules.StandIn(model)
    run = samples.isolated(functools.partial(stand_in.reaching(_outputs), stand_in.model), stand_in)
    transformable = True
    for start in range(0, len(batch[0]), step):
        chunk = tuple(tensor[start : start + step] for tensor in batch)
        if transformable:
            try:
                if start:
                    stand_in.undo_writes(hidden=True)
                product = _transformed(run, stand_in, chunk, vector, weigh)
            except Exception as error:  # whatever a model can raise; below it is raised again
                if fallback.is_no_memory(error):
                    raise
                transformable = False
        if not transformable:
            product = _by_jacobians(model, chunk, vector, weigh)
        yield product


def _transformed(
    run: Callable[..., Tensor],
    stand_in: modules.StandIn,
    chunk: tuple[Tensor, ...],
    vector: Vector,
    weigh: _Weigh,
) -> Vector:
    """Go from the parameters to the outputs of all samples, and back."""
    params = {name: stand_in.params[name] for name in vector}
    data, *targets = chunk

    def outputs_of(params: dict[str, Tensor]) -> Tensor:
        return samples.map_samples(run, params, stand_in.buffers, (data,))

    with samples.eager(), sdpa_kernel(SDPBackend.MATH):  # fused attention has one derivative only
        outputs, pull = vjp(outputs_of, params)
        # What a `vjp` returns is linear in what it is given, so a `vjp` of it is the product with
        # the Jacobian: a `jvp` made of backwards. The `jvp` of torch is not always the transpose of
        # its backward: it moves the padding of an embedding.
        (pushed,) = vjp(pull, torch.zeros_like(outputs))[1]((vector,))
        (product,) = pull(_weighed(weigh, outputs, pushed, targets))
    return {name: tensor.detach() for name, tensor in product.items()}


def _by_jacobians(
    model: nn.Module, chunk: tuple[Tensor, ...], vector: Vector, weigh: _Weigh
) -> Vector:
    """Do the same with the Jacobians of the chunk, `(B, Y, P)`."""
    data, *targets = chunk
    every = jacobians.unflatten_jacobians(jacobians.func_jacobians(model, data), model)
    blocks = {name: every[name] for name in vector}
    pushed = sum(
        torch.einsum("byp,p->by", block.flatten(2), vector[name].reshape(-1))
        for name, block in blocks.items()
    )
    rows: list[Tensor] = [pushed] * len(data)
    samples.loop(_outputs, model, (), (data,), rows.__setitem__)
    weighed = _weighed(weigh, torch.stack(rows).detach(), pushed, targets)
    return {name: torch.einsum("by...,by->...", block, weighed) for name, block in blocks.items()}


def _weighed(weigh: _Weigh, outputs: Tensor, pushed: Tensor, targets: list[Tensor]) -> Tensor:
    """Weigh what was pushed forward, each sample by itself."""
    if not targets:
        return _each(lambda one, tangent: weigh(one, tangent, None), outputs, pushed)
    return _each(weigh, outputs, pushed, targets[0])


def _outputs(
    model: nn.Module, params: dict[str, Tensor], buffers: dict[str, Tensor], sample: Tensor
) -> Tensor:
    """Run the model on one sample."""
    return _of_one(modules.call(model, params | buffers, sample.unsqueeze(0)))


def _of_one(outputs: Tensor) -> Tensor:
    """Return what a model gave for a batch of one without the dimension B."""
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != (1,):
        what = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"the model must return outputs (B, Y), got {what} for a batch of one")
    if outputs.is_complex():
        raise ValueError(
            f"the model must return real outputs, got {outputs.dtype}: the curvature of complex "
            "numbers is not defined here"
        )
    return outputs.squeeze(0)


def _check_dictionary(name: str, vector: Vector) -> None:
    """Refuse what is no dictionary of tensors."""
    if not isinstance(vector, dict) or not all(isinstance(t, Tensor) for t in vector.values()):
        raise TypeError(
            f"{name} must be a dictionary {{name: tensor}}, got {type(vector).__name__}"
            + (" of other things" if isinstance(vector, dict) else "")
        )


def _check_vector(vector: Vector, params: dict[str, Tensor]) -> None:
    """Refuse a vector whose parts do not fit the parameters of their names."""
    _check_dictionary("vector", vector)
    if not vector:
        raise ValueError("vector must hold a parameter at least, got none")
    unknown = [name for name in vector if name not in params]
    if unknown:
        raise ValueError(
            f"vector names {', '.join(map(repr, unknown))}, which is no parameter of this model "
            f"that requires a gradient: these are {', '.join(params)}"
        )
    for name, tensor in vector.items():
        for what, expected, got in (
            ("the shape", tuple(params[name].shape), tuple(tensor.shape)),
            ("dtype", params[name].dtype, tensor.dtype),
            ("device", params[name].device, tensor.device),
        ):
            if got != expected:
                raise ValueError(f"vector[{name!r}] must have {what} {expected}, got {got}")
        if tensor.is_complex():
            raise ValueError(
                f"vector[{name!r}] must be real, got {tensor.dtype}: the curvature of complex "
                "numbers is not defined here"
            )


def _check_returned(returned: Vector, like: Vector) -> None:
    """Refuse what is no product of a vector."""
    _check_dictionary("what the product returns", returned)
    shapes, wanted = (
        {name: tuple(tensor.shape) for name, tensor in each.items()} for each in (returned, like)
    )
    if shapes != wanted:
        raise ValueError(f"the product must return the shapes {wanted}, got {shapes}")
