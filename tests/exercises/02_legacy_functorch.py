# Wrong answers: the id of the solution that each stands for, and the verdict it gets.

# %% solution-1: right shape, wrong values
def disagreement_gradient(models, x):
    return -legacy_disagreement_gradient(models, x)


# %% solution-1: wrong shape
def disagreement_gradient(models, x):
    return legacy_disagreement_gradient(models, x).squeeze(1)


# %% solution-2: not so yet: they are detached
def refreshed(fmodel, model):
    return tuple(model.get_parameter(name) for name in fmodel.param_names)


# %% solution-2: wrong shape: parameters in another order
def refreshed(fmodel, model):
    return tuple(p.detach() for p in model.parameters())
