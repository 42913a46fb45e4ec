"""Per-sample gradients as they come: in the factors that layers have of them, or dense."""

from dataclasses import dataclass, field, replace

from torch import Tensor

from helpers.layers.layer_call import LayerCall, write_or_add
from helpers.transforms.numbers import wide


@dataclass
class PerSampleGradients:
    """The gradient of a parameter is the sum over the calls of its layers, and a dense part."""

    dense: dict[str, Tensor]  # by parameter name, gradients (B, *shape)
    calls: dict[str, list[tuple[LayerCall, str]]] = field(default_factory=dict)
    """By parameter name, calls of layers, each with the role that the parameter has in it."""

    def rows(self, index: slice | Tensor) -> "PerSampleGradients":
        """Return those of some samples, in float32 or wider, as they are to be added up."""

        def pick(tensor: Tensor) -> Tensor:
            indices = not (tensor.is_floating_point() or tensor.is_complex())  # of an embedding
            return tensor[index] if indices else tensor[index].to(wide(tensor.dtype))

        def part(call: LayerCall) -> LayerCall:
            sides = {side: pick(getattr(call, side)) for side in ("activations", "output_grads")}
            return replace(call, **sides)

        return PerSampleGradients(
            {name: pick(tensor) for name, tensor in self.dense.items()},
            {name: [(part(call), role) for call, role in own] for name, own in self.calls.items()},
        )

    def only_call(self, name: str) -> tuple[LayerCall, str] | None:
        """Return the one call that describes the whole gradient of a parameter, if one does."""
        calls = self.calls.get(name, [])
        return calls[0] if len(calls) == 1 and name not in self.dense else None

    def gradients(self, name: str) -> Tensor | None:
        """Return the gradients of the samples, `(B, *shape)`; `None` where they are zero."""
        calls, dense = self.calls.get(name, []), self.dense.get(name)
        if not calls:
            return dense
        (call, role), *others = calls
        gradients = call.gradients(role)
        if (others or dense is not None) and gradients is call.output_grads:
            gradients = gradients.clone()
        for call, role in others:
            call.write(role, gradients, add=True)
        if dense is not None:
            gradients += dense
        return gradients

    def write(self, out: dict[str, Tensor]) -> None:
        """Write the gradients of the samples into tensors `(B, *shape)`, by name."""
        for name, tensor in out.items():
            calls, dense = self.calls.get(name, []), self.dense.get(name)
            for index, (call, role) in enumerate(calls):
                call.write(role, tensor, add=index > 0)
            if dense is not None:
                write_or_add(dense, tensor, add=bool(calls))
            elif not calls:
                tensor.zero_()
