"""Per-sample gradients as recorded calls of layers, or dense."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from helpers.layers.layer_call import LayerCall, Squares, dense, squared_norms
from helpers.numbers import wide


@dataclass
class PerSampleGradients:
    """The gradient of a parameter is the sum over its calls."""

    calls: dict[str, list[LayerCall]]  # by parameter name

    def rows(self, index: slice | Tensor) -> "PerSampleGradients":
        """Return some samples' gradients, in float32 or wider, ready to be summed."""
        chosen: dict[str, list[LayerCall]] = {}
        for name, calls in self.calls.items():
            chosen[name] = [_rows_of(call, index) for call in calls]
        return PerSampleGradients(chosen)

    def only_call(self, name: str) -> LayerCall | None:
        """Return the only call that a parameter's gradient comes from, if there is just one."""
        calls = self.calls.get(name, [])
        return calls[0] if len(calls) == 1 else None

    def gradients(self, name: str) -> Tensor | None:
        """Return the gradients of the samples, `(B, *shape)`; `None` where they are zero."""
        calls = self.calls.get(name, [])
        if not calls:
            return None
        if len(calls) == 1:
            return calls[0].gradients()
        output_grads = calls[0].output_grads
        gradients = output_grads.new_empty((len(output_grads), *calls[0].shape))
        self.write({name: gradients})
        return gradients

    def norms(
        self, params: dict[str, Tensor], like: Tensor, *, keep: bool = False
    ) -> tuple[Tensor, dict[str, LayerCall]]:
        """Compute the norms of the samples' gradients over all parameters, `(B,)` as `like`.

        If `keep`, also return a call for each parameter from which a weighted sum follows.
        """
        grads = self
        if any(torch.finfo(parameter.dtype).bits < 32 for parameter in params.values()):
            grads = self.rows(slice(None))
        by_rule: dict[str, Squares] = {}
        for name in params:
            call = grads.only_call(name)
            squared = None if call is None else call.squares(then_total=keep)
            if squared is not None:
                by_rule[name] = squared
        lost = _names_of_lost(by_rule)

        squares = torch.zeros_like(like)
        calls = {}
        for name in params:
            if name in by_rule and name not in lost:
                call = grads.only_call(name)
                squares += by_rule[name].values
            else:  # no rule gives the norm, or several calls add up, or it would be inexact
                gradient = grads.gradients(name)
                if gradient is None:  # it is zero
                    continue
                call = dense(gradient)
                squares += squared_norms(gradient)
            if keep:
                calls[name] = call
        return squares.sqrt(), calls

    def write(self, out: dict[str, Tensor]) -> None:
        """Write the gradients of the samples into tensors `(B, *shape)`, by name."""
        for name, tensor in out.items():
            for index, call in enumerate(self.calls.get(name, [])):
                call.write(tensor, add=index > 0)
            if name not in self.calls:
                tensor.zero_()


def _names_of_lost(by_rule: dict[str, Squares]) -> set[str]:
    """Return the parameters some of whose squared norms are lost."""
    if not by_rule:
        return set()
    # One look at all flags: a GPU makes the CPU wait for each.
    flags = torch.stack([squared.lost for squared in by_rule.values()]).tolist()
    names = set()
    for name, is_lost in zip(by_rule, flags, strict=True):
        if is_lost:
            names.add(name)
    return names


def _rows_of(call: LayerCall, index: slice | Tensor) -> LayerCall:
    """Return a call of some samples, in float32 or wider."""
    grads = call.output_grads[index]
    inputs = call.activations
    if inputs is not None:
        inputs = inputs[index]
        if inputs.is_floating_point():  # not an embedding's indices
            inputs = inputs.to(wide(inputs.dtype))
    return replace(call, activations=inputs, output_grads=grads.to(wide(grads.dtype)))
