"""Per-sample gradients as recorded calls of layers, or dense."""

from dataclasses import dataclass, replace

from torch import Tensor

from helpers.layers.layer_call import LayerCall
from helpers.numbers import wide


@dataclass
class PerSampleGradients:
    """The gradient of a parameter is the sum over its calls."""

    calls: dict[str, list[LayerCall]]  # by parameter name

    def rows(self, index: slice | Tensor) -> "PerSampleGradients":
        """Return some samples' gradients, in float32 or wider, ready to be summed."""

        def chosen(call: LayerCall) -> LayerCall:
            grads, inputs = call.output_grads[index], call.activations
            if inputs is not None:
                inputs = inputs[index]
                if inputs.is_floating_point():  # not an embedding's indices
                    inputs = inputs.to(wide(inputs.dtype))
            grads = grads.to(wide(grads.dtype))
            return replace(call, activations=inputs, output_grads=grads)

        return PerSampleGradients({n: [*map(chosen, calls)] for n, calls in self.calls.items()})

    def only_call(self, name: str) -> LayerCall | None:
        """Return the only call that a parameter's gradient comes from, if there is just one."""
        calls = self.calls.get(name, [])
        return calls[0] if len(calls) == 1 else None

    def gradients(self, name: str) -> Tensor | None:
        """Return the gradients of the samples, `(B, *shape)`; `None` where they are zero."""
        first, *others = self.calls.get(name) or [None]
        if not others:
            return first and first.gradients()
        gradients = first.output_grads.new_empty((len(first.output_grads), *first.shape))
        self.write({name: gradients})
        return gradients

    def write(self, out: dict[str, Tensor]) -> None:
        """Write the gradients of the samples into tensors `(B, *shape)`, by name."""
        for name, tensor in out.items():
            for index, call in enumerate(self.calls.get(name, [])):
                call.write(tensor, add=index > 0)
            if name not in self.calls:
                tensor.zero_()
