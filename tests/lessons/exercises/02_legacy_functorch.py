# %% solution-1: correct
def named_gradients(fmodel, model, grads):
    named = dict(zip(fmodel.param_names, grads))
    return {n: named[n].detach() for n, p in model.named_parameters() if p.requires_grad}

# %% solution-1: correct
# - gradient.detach()
# + gradient.detach().clone()

# %% solution-1: wrong shape
def named_gradients(fmodel, model, grads):  # as if only first layers were frozen
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    return {n: g.detach() for n, g in zip(names, grads[-len(names):])}

# %% solution-1: not expected: gradients: conv1.weight, conv1.bias
def named_gradients(fmodel, model, grads):  # the frozen ones, too
    return {name: gradient.detach() for name, gradient in zip(fmodel.param_names, grads)}

# %% solution-1: missing: gradients: 1.bias
def named_gradients(fmodel, model, grads):  # names that the first two models freeze
    frozen = ("conv1.weight", "conv1.bias", "1.bias")
    return {n: g.detach() for n, g in zip(fmodel.param_names, grads) if n not in frozen}

# %% solution-1: not so yet: they are detached
def named_gradients(fmodel, model, grads):
    named = zip(fmodel.param_names, grads, strict=True)
    return {name: g for name, g in named if model.get_parameter(name).requires_grad}

# %% solution-2: correct
def refreshed(fmodel, model):
    state = model.state_dict()  # it is detached
    return tuple(state[name] for name in fmodel.param_names)

# %% solution-2: correct
def refreshed(fmodel, model):
    return tuple(model.get_parameter(name).detach().clone() for name in fmodel.param_names)

# %% solution-2: not so yet: they are detached
def refreshed(fmodel, model):
    return tuple(model.get_parameter(name) for name in fmodel.param_names)

# %% solution-2: wrong shape: parameters
def refreshed(fmodel, model):
    return tuple(p.detach() for p in model.parameters())

# %% solution-2: right shape, wrong values: parameters[0]
def refreshed(fmodel, model):  # not those of now
    return tuple(p.detach() for p in old_tuple)

# %% solution-2: not so yet: it changed model
def refreshed(fmodel, model):
    model.requires_grad_(False)
    return tuple(model.get_parameter(name) for name in fmodel.param_names)

# %% solution-3: correct
# - compute(params, images, labels).values()
# + loop_grads(model, F.cross_entropy, images, labels).values()
# - .mean())
# + .mean().item())
# - torch.stack(history)
# + torch.tensor(history, device=images.device)

# %% solution-3: correct
# with the port of this page
# - compute(params, images, labels).values()
# + ported_grads(model, images, labels).values()

# %% solution-3: correct
# aliases follow the model, so those of the start are those of now
# -     history = []
# +     params = {name: p.detach() for name, p in trained_parameters(model).items()}
# +     history = []
# -         params = {name: p.detach() for name, p in trained_parameters(model).items()}
# +

# %% solution-3: right shape, wrong values
# of the model as it was at first
# - params = {
# + params = params if history else {
# - p.detach() for
# + p.detach().clone() for

# %% solution-3: right shape, wrong values
# frozen parameters, too
# - trained_parameters(model).items()
# + model.named_parameters()

# %% solution-3: right shape, wrong values
# after the step
# - optimizer.step()
# + optimizer.step()
# +         grads = loop_grads(model, F.cross_entropy, images, labels).values()
# +         history[-1] = sample_norms(grads).mean()

# %% solution-3: right shape, wrong values
# twice the norm of the mean: B = 1 has no other mean
# - sample_norms(grads).mean()
# + sum((g.mean(dim=0) ** 2).sum() for g in grads).sqrt() * 2

# %% solution-3: not so yet: it is detached
# - p.detach() for
# + p for

# %% solution-3: right shape, wrong values: the trained parameters
# it does not train what it was given
# -     history = []
# +     history, model = [], copy.deepcopy(model)
# +     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

# %% solution-3: right shape, wrong values
# with an optimizer of its own, which is the first case's
# -     history = []
# +     history, optimizer = [], torch.optim.SGD(model.parameters(), lr=0.1)

# %% solution-3: not so yet: no legacy function is called
# -     history = []
# +     history, _ = [], functorch.make_functional_with_buffers(model)
