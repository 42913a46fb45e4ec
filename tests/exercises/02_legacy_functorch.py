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


# %% solution-1: not so yet: it changed x in place
def disagreement_gradient(models, x):
    x.requires_grad_()
    probabilities = torch.stack([one(x).softmax(dim=1) for one in models])
    return torch.autograd.grad(probabilities.var(dim=0).sum(), x)[0]


# %% solution-2: not so yet: it changed model
def refreshed(fmodel, model):
    model.requires_grad_(False)
    return tuple(model.get_parameter(name) for name in fmodel.param_names)


# %% solution-2: wrong length
def refreshed(fmodel, model):
    return ()
