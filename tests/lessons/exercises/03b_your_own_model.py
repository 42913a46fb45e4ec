# %% solution-1: correct
def grads_of_named_inputs(model, loss_fn, inputs, targets):  # each tensor sliced by its own entry
    trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}

    def compute_loss(params, sample, target):
        sample = {name: x[None] for name, x in sample.items()}
        return loss_fn(functional_call(model, params, args=(), kwargs=sample), target[None])

    in_dims = (None, dict.fromkeys(inputs, 0), 0)
    return vmap(grad(compute_loss), in_dims=in_dims)(trained, inputs, targets)

# %% solution-1: correct
def grads_of_named_inputs(model, loss_fn, inputs, targets):  # through a list of tensors
    names = list(inputs)
    params = {name: p.detach() for name, p in trained_parameters(model).items()}

    def compute_loss(params, target, *tensors):
        named = dict(zip(names, (x.unsqueeze(0) for x in tensors), strict=True))
        return loss_fn(functional_call(model, params, (), named), target.unsqueeze(0))

    in_dims = (None, 0, *[0 for _ in names])
    return vmap(grad(compute_loss), in_dims)(params, targets, *inputs.values())

# %% solution-1: not expected: gradients: first.weight, first.bias
# the frozen ones, too
# - trained_parameters(model).items()
# + model.named_parameters()

# %% solution-1: your answer raised RuntimeError: mat1 and mat2
# without the dimension of the batch
# - x.unsqueeze(0)
# + x

# %% solution-1: right shape, wrong values
# by position
# - (), batch_of_one)
# + tuple(batch_of_one.values()))

# %% solution-1: right shape, wrong values
# the first target for all
# - in_dims=(None, 0, 0))(params, inputs, targets)
# + in_dims=(None, 0, None))(params, inputs, targets[0])

# %% solution-1: not so yet: one forward pass: measured 7
def grads_of_named_inputs(model, loss_fn, inputs, targets):
    names = list(trained_parameters(model))
    rows = []
    for i in range(len(targets)):
        sample = {name: x[i : i + 1] for name, x in inputs.items()}
        loss = loss_fn(model(**sample), targets[i : i + 1])
        rows.append(torch.autograd.grad(loss, list(trained_parameters(model).values())))
    return {name: torch.stack(column) for name, column in zip(names, zip(*rows), strict=True)}
