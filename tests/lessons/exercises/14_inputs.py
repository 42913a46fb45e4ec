# %% solution-1: correct
def forces(energy, positions):  # plain autograd; one molecule's energy depends on its own atoms
    leaf = positions.clone().requires_grad_()
    (g,) = torch.autograd.grad(sum(energy(r) for r in leaf), leaf)
    return -g

# %% solution-1: correct
def forces(energy, positions):  # one at a time
    return torch.stack([-torch.func.jacrev(energy)(r) for r in positions])

# %% solution-1: right shape, wrong values
def forces(energy, positions):  # the mean of the batch
    return -grad(lambda p: vmap(energy)(p).mean())(positions)

# %% solution-1: right shape, wrong values
def forces(energy, positions):  # without vmap
    return -grad(energy)(positions)

# %% solution-2: correct
# a class of its own for each
# - module.__class__ = ExactLayerNorm
# + module.__class__ = type("Exact", (ExactLayerNorm,), {})

# %% solution-2: correct
# on the instances
# - module.__class__ = ExactLayerNorm
# + module.forward = partial(ExactLayerNorm.forward, module)

# %% solution-2: not so yet: its gradients are right
# children, each listed once: a layer in two places stays in the second
# -     for module in model.modules():
# -         if type(module) is nn.LayerNorm:
# -             module.__class__ = ExactLayerNorm
# +     for parent in list(model.modules()):
# +         for name, child in parent.named_children():
# +             if isinstance(child, nn.LayerNorm):
# +                 affine = child.weight is not None
# +                 exact = ExactLayerNorm(child.normalized_shape, child.eps, affine)
# +                 exact.weight, exact.bias = child.weight, child.bias
# +                 setattr(parent, name, exact)

# %% solution-2: not so yet: deep: it returns the model that it got
def repair(model):  # a copy
    import copy

    return copy.deepcopy(model)

# %% solution-2: right shape, wrong values
# - dims = tuple(range(-len(self.normalized_shape), 0))
# + dims = -1

# %% solution-2: right shape, wrong values
# - self.eps
# + 1e-5
