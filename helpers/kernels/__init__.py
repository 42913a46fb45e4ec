"""The empirical neural tangent kernel: inner products of the Jacobians of a model's outputs.

`kernel[i, j, a, b]` is the inner product of the gradients of output a of sample i and of output b
of sample j, over all parameters with `requires_grad` (Jacot et al., arXiv:1806.07572). Linear
layers use their structure, everything else Jacobians; both are compared by Novak, Sohl-Dickstein
and Schoenholz (arXiv:2206.08720). At most two chunks of samples are in memory at a time.
Lesson 10 writes it as one product of Jacobians.
"""

import torch
from torch import Tensor, nn
from tqdm import tqdm

from helpers.jacobians import no_jacobians
from helpers.kernels import sides
from helpers.transforms import batches, checks
from helpers.transforms.batches import Batch, Tree

__all__ = ["ntk"]

# How many numbers the two sides of a block should hold in total: 512 MB in float32.
_CHUNK = 2**27


@torch.inference_mode(False)
def ntk(
    model: nn.Module, x1: Tree, x2: Tree | None = None, *, chunk_size: int | None = None
) -> Tensor:
    """Compute the empirical neural tangent kernel between two batches, or of one with itself.

    Where a linear layer gets one vector per sample, its weight needs only the layer's inputs and
    output gradients: `(x x') (g g')`. All other parameters need Jacobians, chunk by chunk. If the
    computation takes more than a second, a progress bar appears.

    Args:
        model: Any module that maps `(B, ...)` to outputs `(B, Y)`.
        x1: `(N1, ...)`, or a pytree of such tensors.
        x2: `(N2, ...)`, likewise, with the same sample shape; `None` means `x1`, and half the work.
        chunk_size: Samples of a side at a time; `None` means as many as should fit in 512 MB.

    Returns:
        `(N1, N2, Y, Y)`, detached and real. A complex parameter counts as two real ones, its real
        and its imaginary part.

    Raises:
        TypeError: `model` is not a module, or `x1` or `x2` is not a pytree of tensors.
        ValueError: The samples of `x1` and `x2` differ in shape, the kernel or the derivatives of
            two chunks would not fit into free memory, or one of the refusals of
            `helpers.jacobians.func_jacobians`.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)  # the gradient of the output is the input
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> ntk(model, x)[:, :, 0, 0]
        tensor([[1., 1.],
                [1., 5.]])
    """
    symmetric = x2 is None
    checks.check_model(model)
    x1 = batches.take(model, x1=x1)
    x2 = x1 if symmetric else batches.take(model, x2=x2)
    shapes1, shapes2 = _sample_shapes(x1), _sample_shapes(x2)
    if shapes1 != shapes2:
        raise ValueError(f"x1 and x2 must hold samples of one shape, got {shapes1} and {shapes2}")
    checks.check_options(chunk_size)
    empty = no_jacobians(model, x1)
    _, outputs, count = empty.shape  # Y and P
    shape = (len(x1), len(x2), outputs, outputs)
    fix = "pass fewer samples, or x2 in parts"
    like = empty.new_empty(1).expand(shape)
    _check_room(f"the kernel {shape}", like, fix)
    try:
        kernel = empty.new_zeros(shape)
    except RuntimeError as error:  # if it is not known how much is free
        raise _no_room(f"the kernel {shape}", like, fix) from error
    if kernel.numel() == 0 or count == 0:
        return kernel
    dense = sides.dense_size(model, x1)  # P without structured parameters
    make_side = sides.of_layers if dense < count else sides.of_jacobians
    # A network's memory per sample is unknown before it runs: assume, for each output, 64 times the
    # sample's size.
    size = sum(leaf[0].numel() for leaf in x1.leaves)
    step = chunk_size or max(1, _CHUNK // (2 * outputs * (dense + 64 * size) + 2))
    held = min(step, len(x1)) + min(step, len(x2))  # samples
    jacobians = empty.new_empty(1).expand(held, outputs, dense)
    fix = "a smaller chunk_size helps" if step > 1 else "let fewer parameters require a gradient"
    _check_room(f"with chunk_size={step} the Jacobians of two chunks", jacobians, fix)

    blocks = []  # where the rows of a block start, and its columns
    for i in range(0, len(x1), step):
        # The kernel of a batch with itself is symmetric: half of its blocks are enough.
        for j in range(i if symmetric else 0, len(x2), step):
            blocks.append((i, j))
    left: sides.Side = {}
    left_start = None
    for i, j in tqdm(blocks, desc="kernel", leave=False, delay=1):
        rows, columns = slice(i, i + step), slice(j, j + step)
        if i != left_start:
            left = {}  # free it before the next one
            left, left_start = make_side(model, outputs, x1[rows]), i
        is_diagonal = symmetric and i == j
        right = left if is_diagonal else make_side(model, outputs, x2[columns])
        block = sides.contract(left, right, outputs)
        del right
        if block is not None:
            kernel[rows, columns] = block
            if symmetric and not is_diagonal:
                kernel[columns, rows] = block.permute(1, 0, 3, 2)
    return kernel


def _sample_shapes(data: Batch) -> str:
    """Name the shapes of a sample's tensors."""
    return ", ".join([str(tuple(leaf.shape[1:])) for leaf in data.tensors.values()])


def _check_room(label: str, like: Tensor, fix: str) -> None:
    """Raise ValueError if a tensor would not fit into free memory, as far as that is known."""
    free = _free_memory(like.device)
    if free is not None and like.numel() * like.element_size() > free:
        raise _no_room(label, like, fix)


def _free_memory(device: torch.device) -> int | None:
    """Return how many bytes are free, or `None` if that is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # PyTorch keeps memory that no tensor uses any more.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + kept
    if device.type == "cpu":
        try:
            with open("/proc/meminfo", encoding="utf-8") as lines:
                for line in lines:  # MemAvailable:   12345678 kB
                    if line.startswith("MemAvailable:"):
                        return int(line.split()[1]) * 1024
        except OSError:  # not on Linux
            pass
    return None


def _no_room(label: str, like: Tensor, fix: str) -> ValueError:
    size = like.numel() * like.element_size()
    return ValueError(f"{label} would take {size / 1e9:,.1f} GB, more than is free: {fix}")
