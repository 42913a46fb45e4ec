"""Per-sample gradients as they come: in the factors that layers have of them, or dense."""

from dataclasses import dataclass, replace

from torch import Tensor

from helpers.layers.layer_call import LayerCall
from helpers.transforms.numbers import wide


@dataclass
class PerSampleGradients:
    """The gradient of a parameter is the sum over its calls, of which a dense one comes last."""

    calls: dict[str, list[LayerCall]]  # by parameter name

    def rows(self, index: slice | Tensor) -> "PerSampleGradients":
        """Return those of some samples, in float32 or wider, as they are to be added up."""

        def pick(tensor: Tensor | None) -> Tensor | None:
            if tensor is None or not (tensor.is_floating_point() or tensor.is_complex()):
                return tensor if tensor is None else tensor[index]  # indices of an embedding
            return tensor[index].to(wide(tensor.dtype))

        def part(call: LayerCall) -> LayerCall:
            sides = {side: pick(getattr(call, side)) for side in ("activations", "output_grads")}
            return replace(call, **sides)

        return PerSampleGradients({n: [*map(part, own)] for n, own in self.calls.items()})

    def only_call(self, name: str) -> LayerCall | None:
        """Return the one call that describes the whole gradient of a parameter, if one does."""
        calls = self.calls.get(name, [])
        return calls[0] if len(calls) == 1 else None

    def gradients(self, name: str) -> Tensor | None:
        """Return the gradients of the samples, `(B, *shape)`; `None` where they are zero."""
        first, *others = self.calls.get(name) or [None]
        gradients = first and first.gradients()
        for call in others:
            call.write(gradients, add=True)
        return gradients

    def write(self, out: dict[str, Tensor]) -> None:
        """Write the gradients of the samples into tensors `(B, *shape)`, by name."""
        for name, tensor in out.items():
            calls = self.calls.get(name, [])
            for index, call in enumerate(calls):
                call.write(tensor, add=index > 0)
            if not calls:
                tensor.zero_()
