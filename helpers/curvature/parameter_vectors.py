"""Vectors of a curvature matrix: dictionaries of tensors by the names of parameters."""

from torch import Tensor

Vector = dict[str, Tensor]


def check_dictionary(name: str, vector: Vector) -> None:
    """Check that a vector is a dictionary of tensors."""
    if not isinstance(vector, dict) or not all(isinstance(t, Tensor) for t in vector.values()):
        raise TypeError(
            f"{name} must be a dictionary {{name: tensor}}, got {type(vector).__name__}"
            + (" of other things" if isinstance(vector, dict) else "")
        )


def check_vector(vector: Vector, params: dict[str, Tensor]) -> None:
    """Check that the parts of a vector fit the parameters of their names."""
    check_dictionary("vector", vector)
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
            raise ValueError(f"vector[{name!r}] must be real, got {tensor.dtype}")


def check_returned(returned: Vector, like: Vector) -> None:
    """Check that what a product returned has the names and shapes of its vector."""
    check_dictionary("what the product returns", returned)
    shapes, wanted = (
        {name: tuple(tensor.shape) for name, tensor in each.items()} for each in (returned, like)
    )
    if shapes != wanted:
        raise ValueError(f"the product must return the shapes {wanted}, got {shapes}")
