"""What a watched batch says of the gradients of its samples, parameter by parameter."""

from dataclasses import dataclass

from torch import Tensor

from helpers.layers.use import Use, place


@dataclass
class Found:
    """The gradient of a parameter is the sum over its uses, and over what no use describes."""

    uses: dict[str, list[tuple[Use, str]]]  # by parameter name, with the role in each use
    rest: dict[str, Tensor]  # by parameter name, gradients (B, *shape)

    def only_use(self, name: str) -> tuple[Use, str] | None:
        """Return the one use that describes the whole gradient of a parameter, if one does."""
        uses = self.uses.get(name, [])
        return uses[0] if len(uses) == 1 and name not in self.rest else None

    def gradients(self, name: str) -> Tensor | None:
        """Return the gradients of the samples, `(B, *shape)`; `None` where they are zero."""
        uses, rest = self.uses.get(name, []), self.rest.get(name)
        if not uses:
            return rest
        (use, role), *others = uses
        gradients = use.gradients(role)
        if (others or rest is not None) and gradients is use.grads:
            gradients = gradients.clone()
        for use, role in others:
            use.write(role, gradients, add=True)
        if rest is not None:
            gradients += rest
        return gradients

    def write(self, out: dict[str, Tensor]) -> None:
        """Write the gradients of the samples into tensors `(B, *shape)`, by name."""
        for name, tensor in out.items():
            uses, rest = self.uses.get(name, []), self.rest.get(name)
            for index, (use, role) in enumerate(uses):
                use.write(role, tensor, add=index > 0)
            if rest is not None:
                place(rest, tensor, add=bool(uses))
            elif not uses:
                tensor.zero_()
